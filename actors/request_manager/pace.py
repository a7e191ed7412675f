"""How soon there will be room: from what has left lately, how long so much more will take."""

from __future__ import annotations

from collections import deque

from actors.request_manager.ports import Clock

REMEMBERED = 64
LEAST_S = 1.0
MOST_S = 120.0


class Pace:
    """How much leaves in which time, over the last few departures.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._departures: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)

    def note(self, amount: int) -> None:
        """So much has left."""
        self._departures.append((self._clock(), amount))

    def wait_s(self, amount: int) -> float:
        """Seconds until so much will have left, within `LEAST_S` and `MOST_S`.

        What left first only says since when the others are counted.
        """
        left = sum(amount for _, amount in self._departures) - self._first_amount
        if left <= 0:
            return LEAST_S
        passed_s = self._clock() - self._departures[0][0]
        return min(max(LEAST_S, amount * passed_s / left), MOST_S)

    @property
    def _first_amount(self) -> int:
        return self._departures[0][1] if self._departures else 0
