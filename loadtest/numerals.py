"""Numbers as they stand in arguments: finite, and of the range that makes sense."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError

MOST = 1_000_000
"""Of anything that is counted: a plan of more requests, or a longer text, is a slip of the key."""


def above_zero(text: str) -> float:
    """A finite number above 0.

    Raises:
        ArgumentTypeError: for anything else; so the others.
    """
    value = _number(text)
    if value <= 0:
        raise ArgumentTypeError(f"{text} is not above 0")
    return value


def not_negative(text: str) -> float:
    """A finite number from 0 on."""
    value = _number(text)
    if value < 0:
        raise ArgumentTypeError(f"{text} is below 0")
    return value


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = not_negative(text)
    if value > 1:
        raise ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


def count(text: str) -> int:
    """A whole number from 1 on."""
    if (value := whole(text)) < 1:
        raise ArgumentTypeError(f"{text} is below 1")
    return value


def whole(text: str) -> int:
    """A whole number from 0 on."""
    value = not_negative(text)
    if value != int(value) or value > MOST:
        raise ArgumentTypeError(f"{text} is not a whole number up to {MOST:,}")
    return int(value)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text} is not a number") from None
    if not math.isfinite(value):
        raise ArgumentTypeError(f"{text} is not a finite number")
    return value
