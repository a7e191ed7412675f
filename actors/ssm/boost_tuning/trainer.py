"""Trains one draft model on records, one replica among several, going on after a kill.

The learning rate rises for a few steps and then falls in a line to zero. A run that is killed and
started again ends with the very weights of one that was not: a checkpoint holds weights, optimizer
state and the step, and the order of the records is a function of the step. Each replica takes its
share of a step's records; a step's loss is the mean over all of its places, so that the number of
replicas changes nothing but the order of sums. Only with a limit in minutes does the end depend on
the machine.

Knows nothing of how records are made, nor of how replicas reach each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from actors.ssm.boost_tuning.adoption import adopt
from actors.ssm.boost_tuning.batches import BatchOrder, pad, padded_groups, targets_of
from actors.ssm.boost_tuning.checkpoint import Checkpoint
from actors.ssm.boost_tuning.loss import distillation_loss
from actors.ssm.boost_tuning.optimizer import MuonWithAdamW
from actors.ssm.boost_tuning.recipe import Progress, Recipe
from actors.ssm.boost_tuning.records import Record
from actors.ssm.boost_tuning.replica import MakeReplica, Share
from actors.ssm.model import DraftModel, LLMMatrices

_WARMUP_STEPS = 40
_LOSS_DECAY = 0.98
CHECKPOINT_SECONDS = 60.0
_CPU = torch.device("cpu")


class Distillation(nn.Module):
    """A draft model whose forward pass gives its loss on a share of a step."""

    cut_index: Tensor

    def __init__(self, model: DraftModel, vocab_size: int, hard_share: float) -> None:
        super().__init__()
        self.model = model
        self._hard_share = hard_share
        cut_index = torch.full((vocab_size,), -1, dtype=torch.int64)
        cut_index[model.cut_ids.long().cpu()] = torch.arange(len(model.cut_ids))
        self.register_buffer("cut_index", cut_index, persistent=False)

    def forward(self, share: Share) -> Tensor:
        """Mean over the share's places, in nats, times its weight; 0 without places."""
        if not share.records:
            return self.model.bias.sum() * 0.0
        device = self.cut_index.device
        hidden: list[Tensor] = []
        ordered: list[Record] = []
        with torch.autocast(device.type, torch.bfloat16):
            for group in padded_groups(share.records):
                token_ids, places = pad(group)
                hidden.append(self.model(token_ids.to(device)).flatten(0, 1)[places.to(device)])
                ordered.extend(group)
            head = self.model.head()
        targets = targets_of(ordered, self.cut_index, self._hard_share)
        loss = distillation_loss(torch.cat(hidden), head, self.model.bias, targets)
        return loss * share.weight


class Trainer:
    """One training run.

    Args:
        recipe: fixed for the run; a checkpoint of another recipe is refused.
        llm: matrices that the draft borrows.
        records: to train on.
        checkpoint: file that the first replica saves to, and that all go on from.
        make_replica: what takes the steps.
        initial: a draft model whose weights to start from; random ones by default.
        checkpoint_s: seconds between checkpoints.
        device: to train on.
        clock: seconds; the first replica's counts.

    Raises:
        InputError: the checkpoint is another run's, or `initial` does not fit the recipe.
    """

    def __init__(
        self,
        recipe: Recipe,
        llm: LLMMatrices,
        records: Sequence[Record],
        checkpoint: Checkpoint,
        make_replica: MakeReplica,
        initial: DraftModel | None = None,
        checkpoint_s: float = CHECKPOINT_SECONDS,
        device: torch.device = _CPU,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self._recipe = recipe
        self._checkpoint = checkpoint
        self._checkpoint_s = checkpoint_s
        self._clock = clock
        mass = word_mass(records, llm.vocab_size)
        cut_ids = choose_cut(mass, recipe.cut_size)
        self.model = DraftModel(recipe.shape, cut_ids, llm)
        with torch.no_grad():
            self.model.bias.copy_((mass[cut_ids] + 1.0).log() - (mass.sum() + len(mass)).log())
        if initial is not None:
            adopt(self.model, initial)
        self.model.to(device)
        self._order = BatchOrder(records, recipe.step_tokens, recipe.seed)
        self._optimizer = MuonWithAdamW(self.model, recipe)
        self.progress = checkpoint.restore(self.model, self._optimizer)
        distillation = Distillation(self.model, llm.vocab_size, recipe.hard_share)
        self._replica = make_replica(distillation.to(device), self._optimizer)

    def run(self) -> Iterator[Progress]:
        """Train to the end, yielding after every step; saves now and then and at the end."""
        self.model.train()
        saved_s = begun_s = self._clock()
        before_s = self.progress.trained_s
        while not self.progress.is_done:
            loss, tokens = self._step()
            now_s = self._clock()
            self._note(loss, tokens, before_s + now_s - begun_s)
            if now_s - saved_s >= self._checkpoint_s or self.progress.is_done:
                self.save()
                saved_s = now_s
            yield self.progress
        self.model.eval()

    def save(self) -> None:
        """Write the checkpoint, if this is the first replica."""
        if self._replica.rank == 0:
            self._checkpoint.save(self.model, self._optimizer, self.progress)

    def _step(self) -> tuple[float, int]:
        """One optimizer step; returns this replica's part of the loss, and all answer tokens."""
        done, replica = self.progress, self._replica
        self._optimizer.set_rates(min(1.0, (done.step + 1) / _WARMUP_STEPS) * (1.0 - done.share))
        records = sorted(self._order.at(done.step), key=lambda record: len(record.tokens))
        own = records[replica.rank :: replica.num_replicas]
        tokens = sum(record.answer_len for record in records)
        part = sum(record.answer_len for record in own) / tokens
        return replica.step(Share(own, part * replica.num_replicas)) / replica.num_replicas, tokens

    def _note(self, loss: float, tokens: int, trained_s: float) -> None:
        done, is_first = self.progress, self._replica.rank == 0
        loss, trained_s = self._replica.sum([loss, trained_s if is_first else 0.0])
        decay = min(_LOSS_DECAY, done.step / (done.step + 1))
        self.progress = Progress(
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
