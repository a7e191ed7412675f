"""What a configuration asks of the cluster: a pure function, so that `validate` can show it.

Resources are logical: a CPU here is a place in Ray's books, not a core. One manager with its ranks
is one placement group, bundle 0 for the manager, one bundle for each rank after it; the ingress
needs no reservation. Knows no Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.config import Config

STRATEGY = "PACK"


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
class Placement:
    """One manager with its LLM."""

    manager: Bundle
    ranks: tuple[Bundle, ...]

    @property
    def bundles(self) -> list[dict[str, float]]:
        """As Ray wants them; bundle 0 is the manager's, bundle 1 + i rank i's."""
        return [dict(bundle.resources) for bundle in (self.manager, *self.ranks)]

    @property
    def num_cpus(self) -> int:
        """Logical CPUs of all bundles."""
        return int(sum(bundle.get("CPU", 0) for bundle in self.bundles))

    def rank_bundle(self, rank: int) -> int:
        """The index of a rank's bundle."""
        return 1 + rank

    def describe(self) -> str:
        """For a person, a line for each bundle."""
        lines = [f"placement group, strategy {STRATEGY}:"]
        for index, bundle in enumerate((self.manager, *self.ranks)):
            amounts = ", ".join(f"{name} {amount:g}" for name, amount in bundle.resources.items())
            lines.append(f"  bundle {index}: {bundle.role} ({amounts})")
        return "\n".join(lines)


def plan_placement(config: Config, num_gpus: int = 0) -> Placement:
    """The bundles of one manager and its LLM ranks, stage by stage.

    Args:
        num_gpus: GPUs of the cluster; if each rank can have one, it gets one.
    """
    stages, shards = config.llm.pipeline_parallel, config.llm.tensor_parallel
    resources = {"CPU": 1.0}
    if num_gpus >= stages * shards:
        resources["GPU"] = 1.0
    ranks = tuple(
        Bundle(f"LLM rank {stage * shards + shard}, stage {stage}, shard {shard}", resources)
        for stage in range(stages)
        for shard in range(shards)
    )
    return Placement(Bundle("request manager", {"CPU": 1.0}), ranks)
