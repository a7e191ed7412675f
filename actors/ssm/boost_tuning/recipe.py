"""How a draft model is trained, and how far that is."""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.ssm.model import DraftShape


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        shape: sizes of the draft model.
        cut_size: number of words that it can draft.
        steps: optimizer steps.
        step_tokens: answer tokens of a step, over all replicas.
        matrix_rate, vector_rate: peak learning rates of Muon and AdamW.
        weight_decay: of the matrices.
        hard_share: part of the target that goes to the LLM's first word alone.
        seed: of initial weights and order of records.
        minutes: end after so much training even if steps are left; None sets no limit. The
            learning rate falls accordingly.
    """

    shape: DraftShape = field(default_factory=DraftShape)
    cut_size: int = 12288
    steps: int = 1500
    step_tokens: int = 1536
    matrix_rate: float = 0.01
    vector_rate: float = 0.003
    weight_decay: float = 0.05
    hard_share: float = 0.0
    seed: int = 0
    minutes: float | None = None


@dataclass(frozen=True)
class Progress:
    """Where training stands, after a step.

    Attributes:
        step: steps done.
        share: of the whole run, 0 to 1.
        loss: running mean, in nats.
        answer_tokens: trained on so far, repetitions counted.
        trained_s: seconds spent training, earlier runs included.
    """

    step: int = 0
    share: float = 0.0
    loss: float = 0.0
    answer_tokens: int = 0
    trained_s: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.share >= 1.0
