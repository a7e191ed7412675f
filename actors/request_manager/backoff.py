"""How long to wait before somebody who was lost is brought back: the longer, the more often he was.

A start takes the processor from those who work, so one that dies again and again costs them more
than it brings; one that has lived for a while is brought back at once again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from actors.request_manager.ports import Clock


class Backoff:
    """The waits of one who may be lost.

    Args:
        waits_s: before one attempt and the next; the last one repeats.
        steady_s: whoever was back for so long begins with the first one again.
        clock: monotonic seconds.
    """

    def __init__(self, waits_s: Sequence[float], steady_s: float, clock: Clock) -> None:
        self._all_s = waits_s
        self._steady_s = steady_s
        self._clock = clock
        self._back_s = -math.inf
        self._waits_s: Iterator[float] = iter(())

    def waits_s(self) -> Iterator[float]:
        """After a loss: the waits before each attempt."""
        if self._clock() - self._back_s >= self._steady_s:
            self._waits_s = itertools.chain(self._all_s, itertools.repeat(self._all_s[-1]))
        return self._waits_s

    def is_back(self) -> None:
        """An attempt was good."""
        self._back_s = self._clock()
