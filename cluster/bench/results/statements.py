"""Sentences made from figures."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.bench.results.comparing import Ratio


def at_least(what: str, found: float | Ratio, wanted: float) -> str:
    """Whether what was asked for was reached, and whether its interval lets one be sure."""
    value = found.value if isinstance(found, Ratio) else found
    return _judged(what, found, f"at least {wanted:g}", wanted, is_met=value >= wanted)


def at_most(what: str, found: float | Ratio, wanted: float) -> str:
    """The same where less is better."""
    value = found.value if isinstance(found, Ratio) else found
    return _judged(what, found, f"at most {wanted:g}", wanted, is_met=value <= wanted)


def _judged(what: str, found: float | Ratio, asked: str, wanted: float, *, is_met: bool) -> str:
    shown = str(found) if isinstance(found, Ratio) else f"{found:.2f}"
    is_sure = not isinstance(found, Ratio) or not found.low <= wanted <= found.high
    verdict = ("met" if is_met else "**missed**") + ("" if is_sure else ", not for sure")
    return f"{what}: {shown}, asked {asked}: {verdict}."


def most(what: str, values: Mapping[str, float]) -> str:
    """Who has most of it, and who follows."""
    first, *others = sorted(values, key=lambda name: -values[name])
    behind = ", ".join(f"{name} {values[name]:.2f}" for name in others)
    followed = f" (then {behind})" if behind else ""
    return f"{what}: {first} has most, {values[first]:.2f}{followed}."
