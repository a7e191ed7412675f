"""What a drafter would add for a request, from what the request's other drafts promise already.

A draft model has little to add where a copy is likely to be right, and much where nothing is
proposed at all. The gain of asking is seen in every step that it was asked for: the accepted tokens
that no other drafter had proposed. It is averaged by what the others had promised, and compared
with the tokens that the time would bring otherwise. Where it is not asked, it is asked now and then
all the same, so that the average follows the texts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from actors.request_manager.merge import MergedTree

LEVELS = (0.05, 0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0)
"""Promises, in tokens, that are told apart."""
FORGET = 1 / 32
FIRST_GAIN = 1.0
"""In tokens: before anything is known a drafter is asked."""
PATIENCE = 32
"""How often a drafter is left out before it is asked to see whether that is still right."""


@dataclass
class _Cell:
    gain: float = FIRST_GAIN
    left_out: int = 0


class DraftGain:
    """Average gains of all drafters, by what the others promise."""

    def __init__(self) -> None:
        self._cells: defaultdict[tuple[str, int], _Cell] = defaultdict(_Cell)

    def pays(self, drafter: str, promise: float, price: float) -> bool:
        """True if the drafter should be asked for one request.

        Args:
            promise: tokens that the other drafts are expected to bring.
            price: tokens that the time of asking would bring otherwise.
        """
        cell = self._cell(drafter, promise)
        if cell.gain > price or cell.left_out >= PATIENCE:
            cell.left_out = 0
            return True
        cell.left_out += 1
        return False

    def observe(self, drafter: str, promise: float, gain: float) -> None:
        """A step is over for which the drafter was asked; `gain` is in tokens."""
        cell = self._cell(drafter, promise)
        cell.gain += FORGET * (gain - cell.gain)

    def _cell(self, drafter: str, promise: float) -> _Cell:
        return self._cells[drafter, bisect_right(LEVELS, promise)]


def gain_of(drafter: str, drafts: MergedTree, accepted: Sequence[int]) -> int:
    """Accepted tokens that would not have been there without a drafter.

    Args:
        accepted: nodes of the drafts, from the context down.
    """
    for depth, node in enumerate(accepted):
        if all(proposal.drafter == drafter for proposal in drafts.proposals[node]):
            return len(accepted) - depth
    return 0
