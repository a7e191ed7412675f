"""Is one arm better than another on the same prompts? Ratios of sums, with their uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cluster.bench.served import Served

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95

Shares = Sequence[tuple[float, float]]
"""Of each prompt, what there was of something, and for how much of something else."""


@dataclass(frozen=True)
class Ratio:
    """Of two arms' figures.

    Attributes:
        low, high: interval by resampling.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def verdict(self) -> str:
        """In a word, as far as the prompts tell."""
        if self.low > 1.0:
            return "more"
        return "less" if self.high < 1.0 else "no clear difference"


def ratio(one: Shares, base: Shares) -> Ratio:
    """How many times as much `one` has as `base`; both of the same prompts."""
    pair = np.array([one, base], dtype=float)  # [arm, prompt, what and for how much]
    places = np.random.default_rng(0).integers(pair.shape[1], size=(NUM_RESAMPLES, pair.shape[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = pair[:, places].sum(2)
        ratios = (sums[0, :, 0] / sums[0, :, 1]) / (sums[1, :, 0] / sums[1, :, 1])
        whole = pair.sum(1)
        value = (whole[0, 0] / whole[0, 1]) / (whole[1, 0] / whole[1, 1])
    tail = 100 * (1 - CONFIDENCE) / 2
    usable = ratios[np.isfinite(ratios)]
    low, high = np.percentile(usable, [tail, 100 - tail]) if len(usable) else (value, value)
    return Ratio(float(value), float(low), float(high))


def tokens_and_steps(served: Iterable[Served]) -> Shares:
    return [(float(one.num_decoded), float(one.stats.num_llm_steps)) for one in served]


def seconds_and_tokens(served: Iterable[Served]) -> Shares:
    return [(one.decode_s, float(one.num_decoded)) for one in served]


def first_drafts(served: Iterable[Served]) -> float:
    """Share of the drafted steps in which the token after the root was in the tree."""
    stats = [one.stats for one in served]
    steps = sum(one.num_spec_steps for one in stats)
    missed = sum(sum(one.acceptance_histogram[:1]) for one in stats)
    return 1.0 - missed / steps if steps else 0.0
