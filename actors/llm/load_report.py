"""What it took to load a model, or one rank's part of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LoadReport:
    """Measured by the process that loaded.

    Attributes:
        num_parameters: held by this rank.
        num_bytes: that they take.
        seconds: from the first file to the last.
        peak_memory_bytes: resident at most, since the process began; 0 where Linux does not say.
    """

    num_parameters: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    peak_memory_bytes: int = 0


def begin_report() -> Callable[[int, int], LoadReport]:
    """Start the clock; the result takes the number of parameters and their bytes, and stops it."""
    started = time.perf_counter()

    def end(num_parameters: int, num_bytes: int) -> LoadReport:
        seconds = time.perf_counter() - started
        return LoadReport(num_parameters, num_bytes, seconds, _peak_memory_bytes())

    return end


def _peak_memory_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
