"""Which rank does what: ranks are numbered stage by stage, shard by shard. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from actors.errors import ModelError


@dataclass(frozen=True)
class Grid:
    """One rank's place among all ranks of an LLM.

    Attributes:
        tensor_parallel: ranks that share each layer.
        pipeline_parallel: stages that the layers are split into.
        rank: this rank's number, counted from 0.
    """

    tensor_parallel: int
    pipeline_parallel: int
    rank: int

    @property
    def num_ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def stage(self) -> int:
        return self.rank // self.tensor_parallel

    @property
    def shard(self) -> int:
        return self.rank % self.tensor_parallel

    @property
    def is_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.pipeline_parallel - 1

    @property
    def answers(self) -> bool:
        """True for the one rank that draws tokens, the last one: only its replies count."""
        return self.rank == self.num_ranks - 1

    @property
    def previous(self) -> int:
        """The same shard of the stage before."""
        return self.rank - self.tensor_parallel

    @property
    def next(self) -> int:
        """The same shard of the stage behind."""
        return self.rank + self.tensor_parallel

    @property
    def stages(self) -> list[list[int]]:
        """The ranks of every stage."""
        width = self.tensor_parallel
        return [list(range(first, first + width)) for first in range(0, self.num_ranks, width)]

    def __str__(self) -> str:
        return f"rank {self.rank} (stage {self.stage}, shard {self.shard})"


def split_layers(costs: Sequence[int], head_cost: int, num_stages: int) -> list[range]:
    """Cut a model's layers into stages so that the dearest stage is as cheap as can be.

    Args:
        costs: of each layer, in order: the parameters that a step goes through.
        head_cost: of the head, which goes with the last layer.

    Returns:
        Each stage's layers, at least one.

    Raises:
        ModelError: there are fewer layers than stages.
    """
    if len(costs) < num_stages:
        raise ModelError(f"its {len(costs)} layers cannot be split into {num_stages} stages")
    totals = [0]
    for cost in costs:
        totals.append(totals[-1] + cost)

    @cache
    def best(first: int, stages: int) -> tuple[int, tuple[int, ...]]:
        """The dearest stage of the layers from `first` on, and where each stage ends."""
        if stages == 1:
            return totals[-1] - totals[first] + head_cost, (len(costs),)
        choices = []
        for end in range(first + 1, len(costs) - stages + 2):
            dearest, ends = best(end, stages - 1)
            choices.append((max(totals[end] - totals[first], dearest), (end, *ends)))
        return min(choices)

    _, ends = best(0, num_stages)
    return [range(first, end) for first, end in zip((0, *ends), ends, strict=False)]
