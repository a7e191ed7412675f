"""How figures are written for people."""

from __future__ import annotations

import math

from loadtest.statistics import Percentile

NONE = "\N{EN DASH}"

ABBREVIATIONS = frozenset({"ttft", "tpot", "itl", "e2e"})


def seconds(value: float | None) -> str:
    """Three digits, in ms below a second."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if abs(value) < 1:
        return f"{_digits(1e3 * value)} ms"
    return f"{_digits(value)} s"


def short_seconds(value: float) -> str:
    """A round value, as at the ticks of an axis."""
    return f"{1e3 * value:.3g} ms" if 0 < abs(value) < 1 else f"{value:.3g} s"


def number(value: float | None) -> str:
    """Three digits, or a whole number with separators."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{int(value)}" if value == int(value) else _digits(value)


def percent(share: float | None) -> str:
    """A share as per cent."""
    return NONE if share is None else f"{100 * share:.3g} %"


def ranged(found: Percentile | None, *, is_time: bool) -> str:
    """A percentile, and its interval in small print (HTML)."""
    if found is None:
        return NONE
    form = seconds if is_time else number
    low, high = form(found.low), form(found.high)
    for unit in (" ms", " s"):
        if low.endswith(unit) and high.endswith(unit):
            low = low.removesuffix(unit)
    return f'{form(found.value)}<br><span class="interval">{low} to {high}</span>'


def title(measure: str) -> str:
    """What a measure is called in a table."""
    words = measure.removesuffix("_s").split("_")
    return " ".join(word.upper() if word in ABBREVIATIONS else word for word in words)


def _digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
