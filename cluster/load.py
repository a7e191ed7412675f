"""How loaded a manager is: what waits, how fast that is taken, and how full the manager is."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from actors.request_manager.ports import Clock
from cluster.metric_maker import MetricMaker

WINDOW_S = 10.0
"""What was admitted within it counts as lately."""


class LoadSignals(NamedTuple):
    """What the number of managers goes by.

    Attributes:
        waiting_tokens: tokens of the requests in the queue.
        admitted_tokens_per_s: tokens that have left it lately, to be run.
        occupancy: how much is taken of the places for requests, or of the KV blocks: the larger.
    """

    waiting_tokens: float
    admitted_tokens_per_s: float
    occupancy: float


class Load:
    """Keeps the signals of one manager, and exports those that no other metric tells.

    Args:
        make: of the manager's metrics.
        max_running: places for requests.
        clock: monotonic seconds.
    """

    def __init__(self, make: MetricMaker, max_running: int, clock: Clock = time.monotonic) -> None:
        self._max_running = max_running
        self._clock = clock
        self._admitted: deque[tuple[float, int]] = deque()
        self._waiting_tokens = 0
        self._occupancy = 0.0
        self._waiting = make.gauge(
            "treeserve_waiting_tokens", "Tokens of the requests in the queue."
        )
        self._full = make.gauge(
            "treeserve_occupancy", "Taken share of places or KV blocks, the larger one."
        )
        self._taken = make.counter(
            "treeserve_admitted_tokens", "Tokens of requests that left the queue to be run."
        )

    def now(self, running: int, waiting_tokens: int, kv_used: int, kv_total: int) -> None:
        """What holds now."""
        self._waiting_tokens = waiting_tokens
        self._occupancy = max(running / self._max_running, kv_used / max(kv_total, 1))
        self._waiting.set(waiting_tokens)
        self._full.set(self._occupancy)

    def admitted(self, num_tokens: int) -> None:
        """So many have left the queue."""
        if num_tokens:
            self._admitted.append((self._clock(), num_tokens))
            self._taken.inc(num_tokens)

    def signals(self) -> LoadSignals:
        horizon_s = self._clock() - WINDOW_S
        while self._admitted and self._admitted[0][0] < horizon_s:
            self._admitted.popleft()
        rate = sum(amount for _, amount in self._admitted) / WINDOW_S
        return LoadSignals(self._waiting_tokens, rate, self._occupancy)
