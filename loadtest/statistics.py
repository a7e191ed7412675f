"""Percentiles with counts and bootstrap intervals.

A percentile is the smallest value that at least that share of the values does not exceed (the
inverse of the empirical distribution): always a value that was measured. It is given only from
enough values for one to lie beyond it: 100 for p99, 1,000 for p99.9.

Intervals are 95 % percentile bootstrap intervals. Values of one request hang together, so whole
requests are drawn, never single tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PERCENTILES: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
CONFIDENCE = 0.95
MIN_RESAMPLES, MAX_RESAMPLES, RESAMPLED_VALUES = 100, 1000, 20_000_000


@dataclass(frozen=True)
class Sample:
    """Values, how often each counts, and which request each is from.

    Attributes:
        values: any order.
        weights: whole numbers; a value of weight 3 stands for three.
        groups: numbers of requests, 0 to some highest.
    """

    values: Floats
    weights: Ints
    groups: Ints

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """One value for each request."""
        size = len(values)
        return cls(
            np.asarray(values, np.float64), np.ones(size, np.int64), np.arange(size, dtype=np.int64)
        )

    @classmethod
    def grouped(
        cls, values: Sequence[Sequence[float]], weights: Sequence[Sequence[int]] | None = None
    ) -> Sample:
        """Several values for each request."""
        sizes = [len(group) for group in values]
        flat = [value for group in values for value in group]
        ones = [1] * len(flat)
        counts = ones if weights is None else [count for group in weights for count in group]
        return cls(
            np.asarray(flat, np.float64),
            np.asarray(counts, np.int64),
            np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        )


@dataclass(frozen=True)
class Percentile:
    """A percentile and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Distribution:
    """What is told of a sample. `count` counts weights."""

    count: int
    mean: float | None
    minimum: float | None
    maximum: float | None
    percentiles: dict[str, Percentile | None]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def plain(self) -> dict[str, float | None]:
        """Percentiles without their intervals."""
        return {
            name: None if found is None else found.value for name, found in self.percentiles.items()
        }


def distribution(sample: Sample, rng: np.random.Generator) -> Distribution:
    """Percentiles of a sample, those that it is large enough for."""
    count = int(sample.weights.sum())
    if not count:
        return Distribution(0, None, None, None, dict.fromkeys(PERCENTILES))
    order = np.argsort(sample.values, kind="stable")
    values, weights = sample.values[order], sample.weights[order]
    shares = {name: share for name, share in PERCENTILES.items() if count * (1 - share) > 1 - 1e-9}
    wanted = np.array(list(shares.values()))
    found = _quantiles(values, weights, wanted)
    low, high = _intervals(values, weights, sample.groups[order], wanted, rng)
    percentiles = {
        name: Percentile(float(found[place]), float(low[place]), float(high[place]))
        for place, name in enumerate(shares)
    }
    return Distribution(
        count,
        float(np.average(values, weights=weights)),
        float(values[0]),
        float(values[-1]),
        {name: percentiles.get(name) for name in PERCENTILES},
    )


def _quantiles(values: Floats, weights: Ints, shares: Floats) -> Floats:
    """Of ascending values; the smallest whose cumulated weight reaches the share."""
    reached = np.cumsum(weights)
    places = np.searchsorted(reached, shares * reached[-1] - 1e-9)
    found: Floats = values[np.minimum(places, len(values) - 1)]
    return found


def _intervals(
    values: Floats, weights: Ints, groups: Ints, shares: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    num_groups = int(groups.max()) + 1
    resamples = int(np.clip(RESAMPLED_VALUES // len(values), MIN_RESAMPLES, MAX_RESAMPLES))
    drawn = np.empty((resamples, len(shares)))
    for row in range(resamples):
        times = np.bincount(rng.integers(num_groups, size=num_groups), minlength=num_groups)
        redrawn = weights * times[groups]
        drawn[row] = _quantiles(values, redrawn, shares) if redrawn.any() else values[-1]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return low, high
