"""Data-parallel training: replicas of one model, each on its share of every step.

Assumes that the process has joined its group (`actors.process_group`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from actors.ssm.boost_tuning.records import Record

CLIP_NORM = 1.0


class Share(NamedTuple):
    """What one replica learns from in a step.

    Attributes:
        records: may be none.
        weight: of their mean loss in the mean over replicas; 1 where shares are of equal size.
    """

    records: Sequence[Record]
    weight: float


class Replica(Protocol):
    """One replica. All of them take every step together."""

    rank: int
    num_replicas: int

    def step(self, share: Share) -> float:
        """Move the weights by the mean of all replicas' gradients, clipped; returns the loss of
        this share."""

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number, added up over the replicas."""


MakeReplica = Callable[[nn.Module, torch.optim.Optimizer], Replica]
"""Of a model whose forward pass gives the loss of a share; its weights become those of rank 0."""


class DeepSpeedReplica:
    """A replica whose steps are taken by a DeepSpeed engine, in float32 and without ZeRO: a draft
    model is small, and Muon wants whole matrices."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        import deepspeed

        self._comm = deepspeed.comm
        self._engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            dist_init_required=False,
            # The engine counts samples by the size of a batch, which says nothing here.
            config={"train_micro_batch_size_per_gpu": 1, "gradient_clipping": CLIP_NORM},
        )
        self.rank = int(self._comm.get_rank())
        self.num_replicas = int(self._comm.get_world_size())

    def step(self, share: Share) -> float:
        loss: Tensor = self._engine(share)
        self._engine.backward(loss)
        self._engine.step()
        return loss.item()

    def sum(self, numbers: Sequence[float]) -> list[float]:
        total = torch.tensor(numbers, dtype=torch.float64, device=self._engine.device)
        self._comm.all_reduce(total)
        return [float(number) for number in total]
