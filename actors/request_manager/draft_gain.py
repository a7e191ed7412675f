"""What a drafter would add for a request, from what the request's other drafts promise already.

A draft model has little to add where a copy is likely to be right, and much where nothing is
proposed at all. The gain of asking is seen in every step that it was asked for: the accepted tokens
that no other drafter had proposed, less what the LLM's time for its nodes would have brought. It is
averaged by what the others had promised, and those requests are chosen for which it exceeds what
the time of asking would bring otherwise. Now and then all are asked, so that the averages follow
the texts and the machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from actors.request_manager.drafter_names import drop_all_of, kind_of
from actors.request_manager.merge import MergedTree

LEVELS = (0.05, 0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0)
"""Promises, in tokens, that are told apart."""
FORGET = 1 / 32
FIRST_GAIN = 1.0
"""In tokens: before anything is known a drafter is asked."""
PATIENCE = 64
"""Steps after which a drafter is asked for all requests again."""


class DraftGain:
    """Average gains of all drafters, by what the others promise."""

    def __init__(self) -> None:
        self._gains: defaultdict[tuple[str, int], float] = defaultdict(lambda: FIRST_GAIN)
        self._steps: Counter[str] = Counter()  # since all were asked

    def choose(
        self, drafter: str, promises: Mapping[int, float], price: Callable[[int], float]
    ) -> set[int]:
        """The requests for which a drafter should be asked in a step.

        Args:
            promises: by request id, tokens that the other drafts are expected to bring.
            price: tokens that the time of asking for so many requests would bring otherwise.
        """
        gains = {one: self._gains[_cell(drafter, promise)] for one, promise in promises.items()}
        ranked = sorted(gains, key=lambda one: -gains[one])
        self._steps[drafter] += 1
        count = len(ranked) if self._steps[drafter] >= PATIENCE else _best(ranked, gains, price)
        if count == len(ranked):
            self._steps[drafter] = 0
        return set(ranked[:count])

    def observe(self, drafter: str, promise: float, gain: float) -> None:
        """A step is over for which the drafter was asked; `gain` is in tokens."""
        cell = _cell(drafter, promise)
        self._gains[cell] += FORGET * (gain - self._gains[cell])

    def begin_anew(self, drafter: str) -> None:
        """Forget a drafter's gains."""
        drop_all_of(drafter, self._gains)


def _cell(drafter: str, promise: float) -> tuple[str, int]:
    return drafter, bisect_right(LEVELS, promise)


def _best(ranked: Sequence[int], gains: Mapping[int, float], price: Callable[[int], float]) -> int:
    """How many to ask for, the most gainful first."""
    best, count, total = 0.0, 0, 0.0
    for size, one in enumerate(ranked, start=1):
        total += gains[one]
        if total - price(size) > best:
            best, count = total - price(size), size
    return count


class Share(NamedTuple):
    """What would not have been in a step without a drafter.

    Attributes:
        num_nodes: drafts that nobody else had proposed, or only others of its kind after it.
        num_accepted: accepted tokens.
    """

    num_nodes: int
    num_accepted: int


def share_of(drafter: str, drafts: MergedTree, accepted: Sequence[int]) -> Share:
    """A drafter's share in one request's drafts.

    What several of its kind proposed is the first one's: else all of them would seem of no use.

    Args:
        accepted: nodes of the drafts, from the context down.
    """
    kind = kind_of(drafter)
    own = [
        node[0].drafter == drafter and all(kind_of(who.drafter) == kind for who in node)
        for node in drafts.proposals
    ]
    depth = next((depth for depth, node in enumerate(accepted) if own[node]), len(accepted))
    return Share(sum(own), len(accepted) - depth)
