"""Arrival schedules of the open loop: when each request is due, whatever the server does.

All schedules are seconds from the start of the run, ascending. A schedule has either a length in
time or in requests, or both; what is reached first ends it. The closed loop has no schedule: its
users send when they are free (see `loadtest.driver`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from loadtest.errors import UsageError
from loadtest.numerals import MOST


@dataclass(frozen=True)
class ArrivalSpec:
    """What the schedule should be.

    Attributes:
        process: one of `PROCESSES`.
        rate: requests a second; at the end of the run for `ramp`.
        burstiness: shape of the gamma distribution of gaps: 1 is Poisson, below 1 more bursty,
            above 1 more even. The coefficient of variation of the gaps is burstiness ** -0.5.
        start_rate: rate at the start of a ramp.
        duration_s, num_requests: the two limits; at least one is needed, and a ramp needs the time.
    """

    process: str
    rate: float
    burstiness: float = 1.0
    start_rate: float = 0.0
    duration_s: float | None = None
    num_requests: int | None = None


Arrivals = Callable[[ArrivalSpec, np.random.Generator], Iterator[float]]


def _poisson(spec: ArrivalSpec, rng: np.random.Generator) -> Iterator[float]:
    return itertools.accumulate(rng.exponential(1 / spec.rate) for _ in itertools.count())


def _gamma(spec: ArrivalSpec, rng: np.random.Generator) -> Iterator[float]:
    scale_s = 1 / (spec.rate * spec.burstiness)
    return itertools.accumulate(rng.gamma(spec.burstiness, scale_s) for _ in itertools.count())


def _constant(spec: ArrivalSpec, rng: np.random.Generator) -> Iterator[float]:
    return (number / spec.rate for number in itertools.count())


def _ramp(spec: ArrivalSpec, rng: np.random.Generator) -> Iterator[float]:
    """Poisson arrivals whose rate rises (or falls) linearly, by inverting the summed rate.

    The n-th arrival is where r0·t + (r1 − r0)·t² / 2T reaches the n-th arrival of a unit-rate
    process.
    """
    first = spec.start_rate
    slope = (spec.rate - first) / (spec.duration_s or 1.0)
    for mass in itertools.accumulate(rng.exponential() for _ in itertools.count()):
        under = first * first + 2 * slope * mass
        denominator = first + under**0.5 if under >= 0 else 0.0
        if denominator <= 0:
            return
        yield 2 * mass / denominator


PROCESSES: dict[str, Arrivals] = {
    "poisson": _poisson,
    "gamma": _gamma,
    "constant": _constant,
    "ramp": _ramp,
}


def check_arrivals(spec: ArrivalSpec) -> None:
    """Whether a schedule can be made.

    Raises:
        UsageError: for an unknown process, a rate that is none, or no limit.
    """
    if spec.process not in PROCESSES:
        raise UsageError(f"--arrivals {spec.process}: not one of {', '.join(PROCESSES)}")
    if not spec.rate > 0 or not spec.burstiness > 0 or spec.start_rate < 0:
        raise UsageError("--rate and --burstiness must be above 0")
    if spec.duration_s is None and spec.num_requests is None:
        raise UsageError("give --duration-s or --requests")
    if spec.process == "ramp" and spec.duration_s is None:
        raise UsageError("--arrivals ramp needs --duration-s")
    wanted = float("inf") if spec.num_requests is None else spec.num_requests
    if spec.duration_s is not None:
        wanted = min(wanted, max(spec.rate, spec.start_rate) * spec.duration_s)
    if wanted > MOST:
        raise UsageError(f"rate and duration make {wanted:.3g} requests; at most {MOST:,}")


def schedule(spec: ArrivalSpec, rng: np.random.Generator) -> list[float]:
    """Due times, ascending.

    Raises:
        UsageError: as `check_arrivals`.
    """
    check_arrivals(spec)
    limit_s = float("inf") if spec.duration_s is None else spec.duration_s
    times = itertools.takewhile(lambda at_s: at_s < limit_s, PROCESSES[spec.process](spec, rng))
    return list(itertools.islice(times, spec.num_requests))
