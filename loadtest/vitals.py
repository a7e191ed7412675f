"""The harness watching itself: lag of its event loop, and its processor time.

A loop that wakes late reads its clock late, so every time it wrote down may be late by as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

PROBE_S = 0.01


@dataclass
class Vitals:
    """What was seen while the harness ran.

    Attributes:
        loop_lag_s: how late the loop woke, every 10 ms.
        cpu_s, wall_s: processor time of this process, and the time it ran.
    """

    loop_lag_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @property
    def cpu_share(self) -> float:
        """Of one core; the harness has one thread."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


@contextlib.asynccontextmanager
async def watch() -> AsyncIterator[Vitals]:
    """Vitals of the body; complete when it has ended."""
    vitals = Vitals()
    clock = asyncio.get_running_loop().time
    start_s, start_cpu_s = clock(), time.process_time()
    prober = asyncio.create_task(_probe(vitals.loop_lag_s))
    try:
        yield vitals
    finally:
        prober.cancel()
        await asyncio.wait([prober])
        vitals.wall_s = clock() - start_s
        vitals.cpu_s = time.process_time() - start_cpu_s


async def _probe(lags_s: list[float]) -> None:
    """On a fixed grid: a long pause counts for every moment in it, not once."""
    clock = asyncio.get_running_loop().time
    due_s = clock() + PROBE_S
    while True:
        await asyncio.sleep(max(0.0, due_s - clock()))
        now_s = clock()
        while due_s <= now_s:
            lags_s.append(now_s - due_s)
            due_s += PROBE_S
