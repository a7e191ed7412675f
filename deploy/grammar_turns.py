"""Whose grammar is checked next, where few are at a time and some take long.

Those go first of whose asker the fewest are being checked now. Among these the smallest and the one
that has waited longest take turns: a small one is not held up by many large ones, and a large one
not for ever by small ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class _Waiting:
    asker: int
    size: int
    turn: asyncio.Future[None]


class Turns:
    """Of so many places; for one event loop."""

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places
        self._taken: Counter[int] = Counter()
        self._waiting: list[_Waiting] = []  # the first has waited longest
        self._is_smallest_next = True

    async def take(self, asker: int, size: int) -> None:
        """Wait for a place; `give_back` it.

        Args:
            size: in any unit.
        """
        one = _Waiting(asker, size, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._hand_out()
        try:
            await one.turn
        except asyncio.CancelledError:
            if not one.turn.cancelled():
                self.give_back(asker)
            elif one in self._waiting:
                self._waiting.remove(one)
            raise

    def give_back(self, asker: int) -> None:
        """Of one who had a place."""
        self._taken[asker] -= 1
        self._num_free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._num_free and self._waiting:
            one = self._next()
            self._waiting.remove(one)
            if not one.turn.cancelled():
                self._num_free -= 1
                self._taken[one.asker] += 1
                one.turn.set_result(None)

    def _next(self) -> _Waiting:
        fewest = min(self._taken[one.asker] for one in self._waiting)
        first = [one for one in self._waiting if self._taken[one.asker] == fewest]
        is_smallest, self._is_smallest_next = self._is_smallest_next, not self._is_smallest_next
        return min(first, key=lambda one: one.size) if is_smallest else first[0]
