"""Trees of drafts grown best first: the node with the likeliest path next, wherever it hangs."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from actors.request_manager.ports import Draft
from actors.tree import CONTEXT, TokenTree

Place = TypeVar("Place")
"""What tells which tokens may come below a node."""


class Limits(NamedTuple):
    """What a tree may be.

    Attributes:
        max_nodes, max_depth: of the tree.
        least_probability: paths with a lower one are left out.
    """

    max_nodes: int
    max_depth: int
    least_probability: float


def best_first(
    start: Place, ways: Callable[[Place], Iterable[tuple[int, float, Place]]], limits: Limits
) -> Draft | None:
    """The tree of the likeliest paths; None if there are none.

    Args:
        start: the place of the root.
        ways: from a place to the tokens that may come there, each once, with its probability and
            the place behind it.
    """
    numbers = itertools.count()  # of equals the first found comes first
    token_ids: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    heap: list[tuple[float, int, int, int, float, Place, int]] = []

    def open_up(place: Place, node: int, depth: int, odds: float) -> None:
        for token, score, behind in ways(place):
            if odds * score >= limits.least_probability:
                entry = (-odds * score, next(numbers), node, token, score, behind, depth)
                heapq.heappush(heap, entry)

    if limits.max_depth > 0:
        open_up(start, CONTEXT, 1, 1.0)
    while heap and len(token_ids) < limits.max_nodes:
        negative_odds, _, parent, token, score, place, depth = heapq.heappop(heap)
        token_ids.append(token)
        parents.append(parent)
        scores.append(score)
        if depth < limits.max_depth:
            open_up(place, len(token_ids) - 1, depth + 1, -negative_odds)
    if not token_ids:
        return None
    return Draft(TokenTree(tuple(token_ids), tuple(parents)), tuple(scores))
