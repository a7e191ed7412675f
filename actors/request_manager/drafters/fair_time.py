"""Requests share a step's time: each step begins with another one, and ends when time is up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from actors.request_manager.ports import Clock, DraftTask


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

    def turns(self, tasks: Sequence[DraftTask]) -> Iterator[DraftTask]:
        """One step's tasks, as long as there is time."""
        begin = self._num_steps % max(len(tasks), 1)
        self._num_steps += 1
        end_s = self._clock() + self._max_step_s
        for task in (*tasks[begin:], *tasks[:begin]):
            if self._clock() >= end_s:
                return
            yield task
