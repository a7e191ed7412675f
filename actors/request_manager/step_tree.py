"""What one step guessed for a request, and what became of it: for those who want to watch.

Made only for requests that ask for it (`shown_trees`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_WAITING_TREES = 64
"""Trees that wait for a late reader; older ones are dropped, so that their memory is bounded."""


@dataclass(frozen=True)
class StepTree:
    """A step of one request.

    Attributes:
        step: the request's LLM steps so far; 0 for the one at its prompt's end.
        token_ids, parents: the tree as it was verified, the root (the last token before) first.
        proposers: for each node the names of the drafters that proposed it; nobody the root.
        estimates: for each node the probability, as estimated before the step, that it is accepted
            given that its parent is.
        accepted: nodes that were accepted and committed, from the root down.
        committed_ids: output tokens that the step brought: those of the accepted nodes, then the
            LLM's own, unless the output ended before it.
        phase_s: seconds of the whole batch by phase: draft, merge, step, verify, commit; and
            forward, the part of step that the LLM's pass took.
    """

    step: int
    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    proposers: tuple[tuple[str, ...], ...]
    estimates: tuple[float, ...]
    accepted: tuple[int, ...]
    committed_ids: tuple[int, ...]
    phase_s: Mapping[str, float]


def joined(earlier: tuple[StepTree, ...], later: tuple[StepTree, ...]) -> tuple[StepTree, ...]:
    """Both, less the oldest if there are too many."""
    return (earlier + later)[-MAX_WAITING_TREES:]
