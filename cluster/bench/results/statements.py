"""Sentences made from figures."""

from __future__ import annotations

from collections.abc import Mapping


def at_least(what: str, found: float, wanted: float) -> str:
    """Whether what was asked for was reached."""
    return f"{what}: {found:.2f}, asked at least {wanted:g}: {_met(found >= wanted)}."


def at_most(what: str, found: float, wanted: float) -> str:
    """The same where less is better."""
    return f"{what}: {found:.2f}, asked at most {wanted:g}: {_met(found <= wanted)}."


def _met(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def most(what: str, values: Mapping[str, float]) -> str:
    """Who has most of it, and who follows."""
    first, *others = sorted(values, key=lambda name: -values[name])
    behind = ", ".join(f"{name} {values[name]:.2f}" for name in others)
    return f"{what}: {first} has most, {values[first]:.2f}" + (
        f" (then {behind})." if behind else "."
    )
