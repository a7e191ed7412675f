"""What text a grammar lets one foresee: where it leaves one way on, or a few.

Keys, braces, `true` or `false`, the rest of an enumeration: texts are followed byte by byte, the
likeliest first, and end where the grammar leaves the choice to the model. Blanks between the parts
of a JSON text are free; they are guessed as most people write them, one after a colon or a comma
and none elsewhere.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from actors.grammar import END_OF_BYTES, Matcher

MAX_WAYS = 4
"""Where there are more ways on, what comes is not for the grammar to say."""
MAX_LOOKS = 96
"""Places looked at in all, about 10 µs each."""
LEAST_ODDS = 0.05
BLANK_ODDS = 0.8
"""That blanks are written as guessed."""

_BLANKS = frozenset(b" \t\n\r")
_SPACE = ord(" ")
_SPACED = frozenset(b":,")


class Foreseen(NamedTuple):
    """A text, and for each of its bytes the odds of the text as far as there."""

    text: bytes
    odds: tuple[float, ...]


def foresee(matcher: Matcher, last: int | None) -> list[Foreseen]:
    """The texts that may come next, none the beginning of another; none where all is open.

    Args:
        matcher: of single bytes, behind the output; stays there.
        last: the output's last byte, if it has one.

    Raises:
        GrammarError: the grammar needs too much work.
    """
    order = itertools.count()
    open_ends = [(-1.0, next(order), matcher.copy(), Foreseen(b"", ()))]
    found: list[Foreseen] = []
    looks = 0
    while open_ends:
        negative_odds, _, here, so_far = heapq.heappop(open_ends)
        behind = so_far.text[-1] if so_far.text else last
        ways = _ways(here, behind) if looks < MAX_LOOKS else {}
        looks += 1
        likely = {byte: -negative_odds * share for byte, share in ways.items()}
        likely = {byte: odds for byte, odds in likely.items() if odds >= LEAST_ODDS}
        if not likely and so_far.text:
            found.append(so_far)
        for byte, odds in likely.items():
            there = here.copy() if len(likely) > 1 else here
            there.accept([byte])
            longer = Foreseen(so_far.text + bytes([byte]), (*so_far.odds, odds))
            heapq.heappush(open_ends, (-odds, next(order), there, longer))
    return found


def _ways(matcher: Matcher, behind: int | None) -> Mapping[int, float]:
    """The bytes that may come next, each with its share; none if they are many."""
    allowed = np.flatnonzero(matcher.allowed()).tolist()
    solid = [byte for byte in allowed if byte not in _BLANKS]
    if len(solid) > MAX_WAYS:
        return {}
    if len(solid) < len(allowed) and solid:
        if behind in _SPACED and _SPACE in allowed:
            return {_SPACE: BLANK_ODDS}
        share = BLANK_ODDS / len(solid)
    else:
        solid = allowed if len(allowed) <= MAX_WAYS else []
        share = 1.0 / max(len(solid), 1)
    return {byte: share for byte in solid if byte != END_OF_BYTES}
