"""Training: it learns, and goes on after a kill as if nothing had happened."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from actors.errors import InputError
from actors.ssm.boost_tuning.checkpoint import Checkpoint
from actors.ssm.boost_tuning.coverage import coverage, coverage_by_source
from actors.ssm.boost_tuning.recipe import Recipe
from actors.ssm.boost_tuning.records import Record
from actors.ssm.boost_tuning.replica import Share
from actors.ssm.boost_tuning.trainer import CHECKPOINT_SECONDS, Trainer, choose_cut
from actors.ssm.model import DraftShape, LLMMatrices
from tests.alone import Alone

RECIPE = Recipe(DraftShape(64, 1, 64), cut_size=50, steps=24, step_tokens=100)


class Clock:
    """Moves on by a checkpoint's interval each time that it is read."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += CHECKPOINT_SECONDS
        return self.now_s


def test_goes_on_after_a_kill_with_the_same_weights(
    matrices: LLMMatrices, records: list[Record], tmp_path: Path
) -> None:
    whole_checkpoint = Checkpoint(tmp_path / "whole", RECIPE)
    killed_checkpoint = Checkpoint(tmp_path / "killed", RECIPE)
    whole = Trainer(RECIPE, matrices, records, whole_checkpoint, Alone, clock=Clock())
    losses = [progress.loss for progress in whole.run()]
    killed = Trainer(RECIPE, matrices, records, killed_checkpoint, Alone, clock=Clock())
    for progress in killed.run():
        if progress.step == 11:
            break
    again = Trainer(RECIPE, matrices, records, killed_checkpoint, Alone, clock=Clock())
    assert again.progress.step == 11
    assert [progress.loss for progress in again.run()] == losses[11:]
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
        assert torch.equal(weight, killed_checkpoint.model(matrices).state_dict()[name]), name
    assert killed_checkpoint.progress.is_done


class Looking(Alone):
    """One of several replicas that looks at its gradients and moves nothing."""

    def __init__(self, rank: int, num_replicas: int, model: nn.Module) -> None:
        self.rank, self.num_replicas, self._model = rank, num_replicas, model
        self.num_records = -1

    def step(self, share: Share) -> float:
        self.num_records = len(share.records)
        loss: Tensor = self._model(share)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()


@pytest.mark.parametrize("num_replicas", [2, 3, 10])
def test_shares_add_up_to_the_whole_step(
    matrices: LLMMatrices, records: list[Record], tmp_path: Path, num_replicas: int
) -> None:
    """Ten replicas are more than a step has records."""

    def look(rank: int, of: int) -> tuple[Looking, float, Tensor]:
        made: list[Looking] = []

        def make(model: nn.Module, _: torch.optim.Optimizer) -> Looking:
            made.append(Looking(rank, of, model))
            return made[0]

        trainer = Trainer(RECIPE, matrices, records, Checkpoint(tmp_path / "none", RECIPE), make)
        progress = next(trainer.run())
        grads = [weight.grad for weight in trainer.model.parameters() if weight.grad is not None]
        known = [weight.flatten() for weight in grads]
        size = sum(weight.numel() for weight in trainer.model.parameters())
        return made[0], progress.loss, torch.cat(known) if known else torch.zeros(size)

    whole, loss, grad = look(0, 1)
    shares = [look(rank, num_replicas) for rank in range(num_replicas)]
    assert sum(one.num_records for one, _, _ in shares) == whole.num_records
    assert sum(part for _, part, _ in shares) == pytest.approx(loss, rel=1e-2)
    with_records = [part for one, _, part in shares if one.num_records]
    mean = torch.stack(with_records).sum(0) / num_replicas
    assert (mean - grad).norm() < 0.02 * grad.norm()


def test_learns(matrices: LLMMatrices, records: list[Record], tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, steps=120, cut_size=60)
    trainer = Trainer(recipe, matrices, records, Checkpoint(tmp_path / "checkpoint", recipe), Alone)
    before = coverage(trainer.model, records)
    *_, last = trainer.run()
    after = coverage(trainer.model, records)
    assert after[0] > before[0] + 0.3
    assert list(after) == sorted(after) and after[-1] <= 1.0
    assert last.share == 1.0 and last.step == 120
    assert set(coverage_by_source(trainer.model, records)) == {"source 0", "source 1"}


def test_a_limit_in_minutes_ends_it_early(
    matrices: LLMMatrices, records: list[Record], tmp_path: Path
) -> None:
    recipe = dataclasses.replace(RECIPE, minutes=10.0)
    checkpoint = Checkpoint(tmp_path / "checkpoint", recipe)
    *_, last = Trainer(recipe, matrices, records, checkpoint, Alone, clock=Clock()).run()
    assert last.share == 1.0 and last.step < RECIPE.steps
    assert last.trained_s >= 600.0  # the last step's own time, too


def test_refuses_a_checkpoint_of_another_recipe(
    matrices: LLMMatrices, records: list[Record], tmp_path: Path
) -> None:
    path, other = tmp_path / "checkpoint", dataclasses.replace(RECIPE, steps=9)
    Trainer(RECIPE, matrices, records, Checkpoint(path, RECIPE), Alone).save()
    with pytest.raises(InputError, match="recipe"):
        Trainer(other, matrices, records, Checkpoint(path, other), Alone)


def test_cut_takes_the_heaviest_words_in_order_of_id() -> None:
    assert choose_cut(torch.tensor([0.1, 3.0, 0.0, 2.0, 0.1]), 3).tolist() == [0, 1, 3]
