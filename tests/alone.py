"""A replica by itself, on plain torch: what trains a draft model without processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from actors.ssm.boost_tuning.lesson import Lesson
from actors.ssm.boost_tuning.recipe import Progress
from actors.ssm.boost_tuning.replica import CLIP_NORM, Share


class Alone:
    """Implements `Replica`."""

    rank, num_replicas = 0, 1

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def step(self, share: Share) -> float:
        loss: Tensor = self._model(share)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._model.parameters(), CLIP_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.item()

    def sum(self, numbers: Sequence[float]) -> list[float]:
        return list(numbers)


def train_alone(lesson: Lesson, workers: object, show: Callable[[Progress], None]) -> None:
    """Stands for `cluster.tune_workers.train`, in this process."""
    for progress in lesson.trainer(Alone, torch.device("cpu")).run():
        show(progress)
