"""What a configuration asks of the cluster: a pure function, so that `validate` can show it.

Resources are logical: a CPU here is a place in Ray's books, not a core. One manager with its ranks
is one placement group: bundle 0 for the manager, then one for each rank and one for each draft
model; the ingress needs no reservation. Knows no Ray.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.config import Config

STRATEGY = "PACK"

SSM_CPUS = 0.25
"""Logical CPUs for each thread of a draft model, which works while the LLM waits for it."""


@dataclass(frozen=True)
class Bundle:
    """Resources that are granted together on one node.

    Attributes:
        role: for whom, in words.
        resources: Ray's names and amounts.
    """

    role: str
    resources: Mapping[str, float]


@dataclass(frozen=True)
class Place:
    """Where an actor goes: a bundle of the placement group, and what it takes of it."""

    bundle: int
    resources: Mapping[str, float]


@dataclass(frozen=True)
class Placement:
    """One manager with its LLM and its draft models."""

    manager: Bundle
    ranks: tuple[Bundle, ...]
    ssms: tuple[Bundle, ...] = ()

    @property
    def bundles(self) -> list[dict[str, float]]:
        """As Ray wants them; bundle 0 is the manager's."""
        return [dict(bundle.resources) for bundle in self._all]

    @property
    def num_cpus(self) -> int:
        """Logical CPUs of all bundles, rounded up."""
        return math.ceil(sum(bundle.get("CPU", 0) for bundle in self.bundles))

    @property
    def rank_places(self) -> list[Place]:
        """Where the LLM's ranks go."""
        return self._places(1, self.ranks)

    @property
    def ssm_places(self) -> list[Place]:
        """Where the draft models go."""
        return self._places(1 + len(self.ranks), self.ssms)

    def describe(self) -> str:
        """For a person, a line for each bundle."""
        lines = [f"placement group, strategy {STRATEGY}:"]
        for index, bundle in enumerate(self._all):
            amounts = ", ".join(f"{name} {amount:g}" for name, amount in bundle.resources.items())
            lines.append(f"  bundle {index}: {bundle.role} ({amounts})")
        return "\n".join(lines)

    @property
    def _all(self) -> tuple[Bundle, ...]:
        return (self.manager, *self.ranks, *self.ssms)

    @staticmethod
    def _places(first: int, bundles: Sequence[Bundle]) -> list[Place]:
        return [Place(first + index, bundle.resources) for index, bundle in enumerate(bundles)]


def plan_placement(config: Config, num_gpus: int = 0) -> Placement:
    """The bundles of one manager, its LLM ranks, stage by stage, and its draft models.

    Args:
        num_gpus: GPUs of the cluster; if each rank can have one, it gets one, unless `llm.device`
            settles it. A cluster that grows on demand has none before they are asked for.
    """
    stages, shards = config.llm.pipeline_parallel, config.llm.tensor_parallel
    resources = {"CPU": 1.0}
    device = config.llm.device
    if device == "cuda" or (device == "auto" and num_gpus >= stages * shards):
        resources["GPU"] = 1.0
    ranks = tuple(
        Bundle(f"LLM rank {stage * shards + shard}, stage {stage}, shard {shard}", resources)
        for stage in range(stages)
        for shard in range(shards)
    )
    ssms = tuple(
        Bundle(f"draft model {ssm.path}", {"CPU": SSM_CPUS * ssm.num_threads})
        for ssm in config.ssms
    )
    return Placement(Bundle("request manager", {"CPU": 1.0}), ranks, ssms)
