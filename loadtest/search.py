"""The highest rate that still meets the objectives, by bisection.

Whether a rate passes is taken as falling with the rate. Where the answer is noisy, the result is
the highest rate that was seen to pass below the lowest that was seen to fail, not a promise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class SearchResult:
    """What was found.

    Attributes:
        passed: the highest rate seen to pass; None if the lowest tried failed.
        failed: the lowest rate seen to fail; None if the highest tried passed.
        tried: every rate, in order, and whether it passed.
    """

    passed: float | None
    failed: float | None
    tried: tuple[tuple[float, bool], ...]


async def highest_rate(
    passes: Callable[[float], Awaitable[bool | None]], low: float, high: float, tolerance: float
) -> SearchResult:
    """Bisect between two rates, geometrically, until they are within a factor of `1 + tolerance`.

    Args:
        passes: measures one rate; None if the measurement was broken off, which ends the search.
    """
    tried: list[tuple[float, bool]] = []

    async def attempt(rate: float) -> bool | None:
        passed = await passes(rate)
        if passed is not None:
            tried.append((rate, passed))
        return passed

    at_low = await attempt(low)
    if not at_low:
        return SearchResult(None, low if at_low is False else None, tuple(tried))
    at_high = await attempt(high)
    if at_high is not False:
        return SearchResult(high if at_high else low, None, tuple(tried))
    while high / low > 1 + tolerance:
        middle = (low * high) ** 0.5
        passed = await attempt(middle)
        if passed is None:
            break
        low, high = (middle, high) if passed else (low, middle)
    return SearchResult(low, high, tuple(tried))
