"""What one draft model is trained on and how, by the files where it stands: small enough to send.

Every process that trains it reads the same records in the same order and agrees with the others
which of them are held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from actors.errors import InputError
from actors.ssm.boost_tuning.checkpoint import Checkpoint
from actors.ssm.boost_tuning.recipe import Recipe
from actors.ssm.boost_tuning.records import Record, RecordFolder, read_weights
from actors.ssm.boost_tuning.replica import MakeReplica
from actors.ssm.boost_tuning.trainer import Trainer
from actors.ssm.folder import load_draft, load_matrices

HELD_OUT_EVERY = 25


@dataclass(frozen=True)
class Answers:
    """Records of one LLM, in the folders where they stand.

    Attributes:
        folders: read in this order.
        llm_hash: of the LLM's weights.
        seed: of what is held out.
    """

    folders: tuple[Path, ...]
    llm_hash: str
    seed: int

    def read(self) -> tuple[list[Record], list[Record]]:
        """Records to learn from, and those held out of them.

        Raises:
            InputError: they are another LLM's, damaged, or too few.
        """
        records = [
            record
            for folder in self.folders
            for record in RecordFolder(folder, self.llm_hash).read()
        ]
        if len(records) <= HELD_OUT_EVERY:
            raise InputError(f"{len(records)} answers are too few to learn from")
        order = np.random.default_rng(self.seed).permutation(len(records)).tolist()
        num_held_out = len(records) // HELD_OUT_EVERY
        return _pick(records, order[num_held_out:]), _pick(records, order[:num_held_out])


@dataclass(frozen=True)
class Lesson:
    """How one draft model is trained.

    Attributes:
        llm: folder of the LLM.
        answers: to learn from, but for what is held out.
        weights: file with the weights of their places; None for all alike.
        recipe: sizes and settings.
        checkpoint: file to save to and to go on from.
        checkpoint_s: seconds between checkpoints.
        initial: folder of a draft model whose weights to start from.
    """

    llm: Path
    answers: Answers
    weights: Path | None
    recipe: Recipe
    checkpoint: Path
    checkpoint_s: float
    initial: Path | None

    @property
    def saved(self) -> Checkpoint:
        """Where training stands."""
        return Checkpoint(self.checkpoint, self.recipe)

    def trainer(self, make_replica: MakeReplica, device: torch.device) -> Trainer:
        """Read everything and go on from the checkpoint. Raises InputError, ModelError."""
        learnt, _ = self.answers.read()
        if self.weights is not None:
            learnt = read_weights(self.weights, learnt)
        initial = load_draft(self.initial, self.llm)[0] if self.initial else None
        return Trainer(
            self.recipe,
            load_matrices(self.llm),
            learnt,
            self.saved,
            make_replica,
            initial,
            self.checkpoint_s,
            device,
        )


def _pick(records: Sequence[Record], order: Sequence[int]) -> list[Record]:
    return [records[index] for index in order]
