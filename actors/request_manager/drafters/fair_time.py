"""Requests share a step's time: each step begins with another one, and ends when time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from actors.request_manager.ports import Clock

Request = TypeVar("Request")
"""What a step has for each request."""


class FairTime:
    """Whose turn it is, step by step.

    Args:
        max_step_s: of the processor's time, for all requests of a step.
        clock: seconds of the processor's time.
    """

    def __init__(self, max_step_s: float, clock: Clock = time.thread_time) -> None:
        self._max_step_s = max_step_s
        self._clock = clock
        self._num_steps = 0
        self._turn_s = -math.inf  # when the turn at hand began
        self._end_s = math.inf

    def turns(self, requests: Sequence[Request]) -> Iterator[Request]:
        """One step's requests, as long as there is time."""
        begin = self._num_steps % max(len(requests), 1)
        self._num_steps += 1
        now_s = self._clock()
        self._end_s = now_s + self._max_step_s
        for request in (*requests[begin:], *requests[:begin]):
            if now_s >= self._end_s:
                return
            self._turn_s = now_s
            yield request
            now_s = self._clock()

    def is_up(self) -> bool:
        """Whether the turn at hand is to end, with its step."""
        return self._clock() >= self._end_s

    def was_used_up(self) -> bool:
        """Whether the turn at hand has taken a whole step's time by itself."""
        return self._clock() - self._turn_s >= self._max_step_s
