"""Acceptance by depth, out of the server's counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.bench.snapshots import Counts

TREE = "tree"
"""All drafters together: the tree that was verified."""


@dataclass(frozen=True)
class Acceptance:
    """Of one tree or one drafter, by depth from 0, the children of the root.

    Attributes:
        reached: steps that accepted a draft at every depth above.
        offered: those of them with a draft of this drafter to verify at the depth.
        accepted: those of them where it was accepted.
    """

    reached: tuple[float, ...]
    offered: tuple[float, ...]
    accepted: tuple[float, ...]

    @property
    def rate(self) -> float | None:
        """Accepted of offered over all depths; None if nothing was offered."""
        return sum(self.accepted) / sum(self.offered) if any(self.offered) else None

    @property
    def by_depth(self) -> list[float | None]:
        """P(accepted at a depth | accepted at all depths above, and offered there).

        None for a depth at which nothing was offered.
        """
        return [
            accepted / offered if offered else None
            for accepted, offered in zip(self.accepted, self.offered, strict=True)
        ]

    @property
    def offered_share(self) -> list[float]:
        """Offered of reached, by depth."""
        return _shares(self.offered, self.reached)

    @property
    def continued(self) -> list[float]:
        """P(accepted at a depth | accepted at all depths above), offered there or not."""
        return _shares(self.accepted, self.reached)

    def report(self) -> dict[str, object]:
        return {
            "acceptance": self.by_depth,
            "offered_share": self.offered_share,
            "offered": list(self.offered),
            "mean_acceptance": self.rate,
        }


def _shares(part: Sequence[float], whole: Sequence[float]) -> list[float]:
    return [one / all_ for one, all_ in zip(part, whole, strict=True)]


def acceptance_of(counts: Counts) -> dict[str, Acceptance]:
    """Of the tree, then of every drafter that was counted."""
    reached = counts.by_depth("treeserve_depth_reached_total")
    offered = counts.by_depth("treeserve_depth_offered_total")
    # What is accepted at a depth reaches the next one.
    found = {TREE: _acceptance(reached, offered, reached[1:])}
    for drafter in counts.labels("treeserve_depth_offered_by_drafter_total", "drafter"):
        found[drafter] = _acceptance(
            reached,
            counts.by_depth("treeserve_depth_offered_by_drafter_total", drafter=drafter),
            counts.by_depth("treeserve_depth_accepted_by_drafter_total", drafter=drafter),
        )
    return found


def _acceptance(reached: list[float], offered: list[float], accepted: list[float]) -> Acceptance:
    while offered and not offered[-1]:
        offered = offered[:-1]
    missing = [0.0] * len(offered)
    return Acceptance(
        tuple(reached[: len(offered)]),
        tuple(offered),
        tuple((accepted + missing)[: len(offered)]),
    )
