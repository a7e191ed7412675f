"""Trains one draft model on records, with checkpoints to go on from after a kill.

Matrices are stepped by Muon (Jordan et al. 2024), vectors by AdamW. The learning rate rises for a
few steps and then falls in a line to zero. A run that is killed and started again ends with the
very weights of one that was not: a checkpoint holds weights, optimizer state and the step, and the
order of the records is a function of the step. Only with a limit in minutes does the end depend on
the machine.

Assumes a CPU with bfloat16 products; knows nothing of how records are made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from actors.errors import InputError
from actors.ssm.boost_tuning.adoption import adopt
from actors.ssm.boost_tuning.batches import BatchOrder, pad, padded_groups, targets_of
from actors.ssm.boost_tuning.loss import distillation_loss
from actors.ssm.boost_tuning.records import Record
from actors.ssm.model import DraftModel, DraftShape, LLMMatrices

_WARMUP_STEPS = 40
_CLIP_NORM = 1.0
_LOSS_DECAY = 0.98
CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        shape: sizes of the draft model.
        cut_size: number of words that it can draft.
        steps: optimizer steps.
        step_tokens: answer tokens of a step.
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

    step: int
    share: float
    loss: float
    answer_tokens: int
    trained_s: float


class Trainer:
    """One training run.

    Args:
        recipe: fixed for the run; a checkpoint of another recipe is refused.
        llm: matrices that the draft borrows.
        records: to train on.
        checkpoint: file to save to and to go on from.
        initial: a draft model whose weights to start from; random ones by default.
        clock: seconds.

    Raises:
        InputError: the checkpoint is another run's, or `initial` does not fit the recipe.
    """

    def __init__(
        self,
        recipe: Recipe,
        llm: LLMMatrices,
        records: Sequence[Record],
        checkpoint: Path,
        initial: DraftModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self._recipe = recipe
        self._checkpoint = checkpoint
        self._clock = clock
        mass = word_mass(records, llm.vocab_size)
        cut_ids = choose_cut(mass, recipe.cut_size)
        self.model = DraftModel(recipe.shape, cut_ids, llm)
        with torch.no_grad():
            self.model.bias.copy_((mass[cut_ids] + 1.0).log() - (mass.sum() + len(mass)).log())
        if initial is not None:
            adopt(self.model, initial)
        self._cut_index = torch.full((llm.vocab_size,), -1, dtype=torch.int64)
        self._cut_index[cut_ids] = torch.arange(len(cut_ids))
        self._order = BatchOrder(records, recipe.step_tokens, recipe.seed)
        self._optimizers = _optimizers(self.model, recipe)
        self._progress = Progress(0, 0.0, 0.0, 0, 0.0)
        if checkpoint.is_file():
            self._load()

    @property
    def progress(self) -> Progress:
        return self._progress

    def run(self) -> Iterator[Progress]:
        """Train to the end, yielding after every step; saves once a minute and at the end."""
        self.model.train()
        saved_s = begun_s = self._clock()
        before_s = self._progress.trained_s
        while self._progress.share < 1.0:
            loss, tokens = self._step()
            self._note(loss, tokens, before_s + self._clock() - begun_s)
            if self._clock() - saved_s >= CHECKPOINT_SECONDS or self._progress.share >= 1.0:
                self.save()
                saved_s = self._clock()
            yield self._progress
        self.model.eval()

    def _step(self) -> tuple[float, int]:
        """One optimizer step; returns its loss and its answer tokens."""
        done = self._progress
        self._set_rates(done.step, done.share)
        loss, tokens = self._backward(self._order.at(done.step))
        nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP_NORM)
        for optimizer in self._optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        return loss, tokens

    def _note(self, loss: float, tokens: int, trained_s: float) -> None:
        done = self._progress
        decay = min(_LOSS_DECAY, done.step / (done.step + 1))
        self._progress = Progress(
            done.step + 1,
            self._share(done.step + 1, trained_s),
            decay * done.loss + (1 - decay) * loss,
            done.answer_tokens + tokens,
            trained_s,
        )

    def _share(self, step: int, trained_s: float) -> float:
        limit = self._recipe.minutes
        by_time = 0.0 if limit is None else trained_s / (60 * limit)
        return min(1.0, max(step / self._recipe.steps, by_time))

    def _set_rates(self, step: int, share: float) -> None:
        factor = min(1.0, (step + 1) / _WARMUP_STEPS) * (1.0 - share)
        for name, optimizer in self._optimizers.items():
            peak = getattr(self._recipe, f"{name}_rate")
            for group in optimizer.param_groups:
                group["lr"] = peak * factor

    def _backward(self, records: Sequence[Record]) -> tuple[float, int]:
        hidden: list[Tensor] = []
        ordered: list[Record] = []
        with torch.autocast("cpu", torch.bfloat16):
            for group in padded_groups(records):
                token_ids, places = pad(group)
                hidden.append(self.model(token_ids).flatten(0, 1)[places])
                ordered.extend(group)
            head = self.model.head()
        targets = targets_of(ordered, self._cut_index, self._recipe.hard_share)
        loss = distillation_loss(torch.cat(hidden), head, self.model.bias, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item(), len(targets.weights)

    def save(self) -> None:
        """Write the checkpoint in one go."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for key, value in self._optimizer_state():
            tensors[key] = value.contiguous()
        note = {"recipe": _as_text(self._recipe), "progress": json.dumps(asdict(self._progress))}
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._checkpoint.with_name(f".{self._checkpoint.name}.tmp")
        save_file(tensors, scratch, metadata=note)
        scratch.rename(self._checkpoint)

    def _optimizer_state(self) -> Iterator[tuple[str, Tensor]]:
        for kind, optimizer in self._optimizers.items():
            for name, parameter in self.model.named_parameters():
                for key, value in optimizer.state.get(parameter, {}).items():
                    yield f"{kind}.{name}.{key}", value

    def _load(self) -> None:
        try:
            with safe_open(self._checkpoint, framework="pt") as content:
                note = content.metadata()
                tensors = {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"{self._checkpoint}: cannot be read: {error}") from error
        if note.get("recipe") != _as_text(self._recipe):
            raise InputError(f"{self._checkpoint}: was made by another recipe; remove it first")
        own = {key.removeprefix("model."): value for key, value in tensors.items()}
        names = self.model.state_dict().keys()
        if not torch.equal(own["cut_ids"], self.model.cut_ids):
            raise InputError(f"{self._checkpoint}: was made from other records")
        self.model.load_state_dict({name: own[name] for name in names})
        for kind, optimizer in self._optimizers.items():
            for name, parameter in self.model.named_parameters():
                prefix = f"{kind}.{name}."
                state = {
                    key.removeprefix(prefix): value
                    for key, value in tensors.items()
                    if key.startswith(prefix)
                }
                if state:
                    optimizer.state[parameter] = state
        self._progress = Progress(**json.loads(note["progress"]))


def word_mass(records: Sequence[Record], vocab_size: int) -> Tensor:
    """[vocab] float64 probability that the LLM gave to each word, summed over all places by their
    weights."""
    mass = np.zeros(vocab_size)
    for record in records:
        probabilities = np.exp(record.top_logprobs.astype(np.float64))
        probabilities *= record.place_weights[:, np.newaxis]
        np.add.at(mass, record.top_ids.reshape(-1), probabilities.reshape(-1))
    return torch.from_numpy(mass)


def choose_cut(mass: Tensor, size: int) -> Tensor:
    """[size] ids of the words with the most mass, ascending; ties go to the lower id."""
    best = torch.sort(mass, descending=True, stable=True).indices[:size]
    return best.sort().values


def _optimizers(model: DraftModel, recipe: Recipe) -> dict[str, torch.optim.Optimizer]:
    """Keyed by the rate's name in the recipe."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    return {
        "matrix": torch.optim.Muon(
            matrices,
            lr=recipe.matrix_rate,
            weight_decay=recipe.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        "vector": torch.optim.AdamW(
            vectors, lr=recipe.vector_rate, betas=(0.9, 0.98), weight_decay=0.0
        ),
    }


def _as_text(recipe: Recipe) -> str:
    return json.dumps(asdict(recipe), sort_keys=True)
