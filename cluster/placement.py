"""What a configuration asks of the cluster: a pure function, so that `validate` can show it.

Resources are logical: a CPU here is a place in Ray's books, not a core. One manager with its ranks
is one placement group: bundle 0 for the manager, then one for each stage of the LLM and one for
each replica of a draft model; the ingress needs no reservation. A bundle is on one node, so the
ranks that share a stage's layers are always side by side, while stages may be on different nodes.
Knows no Ray.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.config import Config

RESOURCES = ("CPU", "GPU")

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
    stages: tuple[Bundle, ...]
    ranks_per_stage: int = 1
    ssms: tuple[Bundle, ...] = ()

    @property
    def strategy(self) -> str:
        """Ray's name for how bundles go to nodes: stages apart where they can be."""
        return "SPREAD" if len(self.stages) > 1 else "PACK"

    @property
    def bundles(self) -> list[dict[str, float]]:
        """As Ray wants them; bundle 0 is the manager's."""
        return [dict(bundle.resources) for bundle in self.all]

    @property
    def num_cpus(self) -> int:
        """Logical CPUs of all bundles, rounded up."""
        return math.ceil(sum(bundle.get("CPU", 0) for bundle in self.bundles))

    @property
    def rank_places(self) -> list[Place]:
        """Where the LLM's ranks go, each with its part of its stage's bundle."""
        shards = self.ranks_per_stage
        return [
            Place(place.bundle, {name: amount / shards for name, amount in place.resources.items()})
            for place in self._places(1, self.stages)
            for _ in range(shards)
        ]

    @property
    def ssm_places(self) -> list[Place]:
        """Where the draft models go."""
        return self._places(1 + len(self.stages), self.ssms)

    def describe(self) -> str:
        """For a person, a line for each bundle."""
        lines = [f"placement group, strategy {self.strategy}:"]
        for index, bundle in enumerate(self.all):
            lines.append(f"  bundle {index}: {bundle.role} ({_amounts(bundle.resources)})")
        return "\n".join(lines)

    @property
    def all(self) -> tuple[Bundle, ...]:
        """Every bundle, in order."""
        return (self.manager, *self.stages, *self.ssms)

    @staticmethod
    def _places(first: int, bundles: Sequence[Bundle]) -> list[Place]:
        return [Place(first + index, bundle.resources) for index, bundle in enumerate(bundles)]


def plan_placement(config: Config, num_gpus: int = 0) -> Placement:
    """The bundles of one manager, the stages of its LLM, and its draft models.

    Args:
        num_gpus: GPUs of the cluster; if each rank can have one, it gets one, unless `llm.device`
            settles it. A cluster that grows on demand has none before they are asked for.
    """
    num_stages, shards = config.llm.pipeline_parallel, config.llm.tensor_parallel
    resources = {"CPU": float(shards)}
    device = config.llm.device
    if device == "cuda" or (device == "auto" and num_gpus >= num_stages * shards):
        resources["GPU"] = float(shards)
    ranks = "1 rank" if shards == 1 else f"{shards} ranks"
    stages = tuple(Bundle(f"LLM stage {stage}, {ranks}", resources) for stage in range(num_stages))
    ssms = tuple(
        Bundle(f"draft model {ssm.path}", {"CPU": SSM_CPUS * ssm.num_threads})
        for ssm in config.ssms
        for _ in range(ssm.replicas)
    )
    return Placement(Bundle("request manager", {"CPU": 1.0}), stages, shards, ssms)


def missing(placement: Placement, nodes: Sequence[Mapping[str, float]]) -> list[str]:
    """What a cluster lacks for a placement, in words; empty if it has room for all bundles.

    Args:
        nodes: each node's resources, whoever uses them now.
    """
    problems = []
    left = [dict(node) for node in nodes]
    totals = Counter[str]()
    for bundle in sorted(placement.all, key=lambda bundle: -_amount(bundle.resources)):
        totals.update(bundle.resources)
        fitting = [node for node in left if _fits(bundle, node)]
        # The tightest one, so that large bundles find the large nodes still free.
        room = min(fitting, key=_amount, default=None)
        if room is not None:
            for name, amount in bundle.resources.items():
                room[name] -= amount
        elif not any(_fits(bundle, node) for node in nodes):
            problems.append(
                f"{bundle.role} needs {_amounts(bundle.resources)} on one node; "
                f"the nodes have {'; '.join(map(_amounts, nodes)) or 'nothing'}"
            )
        else:
            problems.append(
                f"{bundle.role} finds no node that has {_amounts(bundle.resources)} left"
            )
    if problems:
        problems.append(f"{_amounts(totals)} are needed in all")
    return problems


def _fits(bundle: Bundle, node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0) >= amount for name, amount in bundle.resources.items())


def _amount(resources: Mapping[str, float]) -> float:
    return sum(resources.get(name, 0) for name in RESOURCES)


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {resources.get(name, 0):g}" for name in RESOURCES if name in resources
    )
