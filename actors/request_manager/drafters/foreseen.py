"""What text a grammar lets one foresee: where it leaves one way on, or a few.

Keys, braces, `true` or `false`, the rest of an enumeration: texts are followed byte by byte, the
likeliest first, and end where the grammar leaves the choice to the model. Blanks between the parts
of a JSON text are free; they are guessed by how the text is laid out so far (`json_style`).
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from actors.grammar import END_OF_BYTES, Matcher
from actors.request_manager.drafters.json_style import BLANKS, blanks_before, styles_of

MAX_WAYS = 4
"""Where there are more ways on, what comes is not for the grammar to say."""
MAX_LOOKS = 96
"""Places looked at in all, about 10 µs each in a grammar of usual size."""
LEAST_ODDS = 0.05
LAYOUT_ODDS = 0.9
"""That a text is laid out as guessed, at each place where it could be otherwise."""

_BLANKS = frozenset(BLANKS)


class Foreseen(NamedTuple):
    """A text, and for each of its bytes the odds of the text as far as there."""

    text: bytes
    odds: tuple[float, ...]


def foresee(
    matcher: Matcher, output: bytes, is_late: Callable[[], bool] = lambda: False
) -> list[Foreseen]:
    """The texts that may come next, none the beginning of another; none where all is open.

    Args:
        matcher: of single bytes, behind the output; stays there.
        output: so far; of a long one, its beginning and its end, which tell how it is laid out.
        is_late: True when no more time is to be spent.

    Raises:
        GrammarError: the grammar needs too much work.
    """
    order = itertools.count()
    open_ends = [(-1.0, next(order), matcher.copy(), Foreseen(b"", ()))]
    found: list[Foreseen] = []
    looks = 0
    while open_ends:
        negative_odds, _, here, so_far = heapq.heappop(open_ends)
        goes_on = looks < MAX_LOOKS and not is_late()
        ways = _ways(here, output, so_far.text) if goes_on else {}
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


def _ways(matcher: Matcher, output: bytes, guess: bytes) -> dict[int, float]:
    """The bytes that may come next, each with its share; none if they are many."""
    allowed: list[int] = np.flatnonzero(matcher.allowed()).tolist()
    parts = [byte for byte in allowed if byte not in _BLANKS] or allowed
    if len(parts) > MAX_WAYS:
        return {}
    ways = dict.fromkeys(parts, 1.0 / len(parts))
    if len(parts) < len(allowed):
        ways = _laid_out(parts, output + guess) or ways
    return {byte: share for byte, share in ways.items() if byte in allowed and byte != END_OF_BYTES}


def _laid_out(parts: Sequence[int], text: bytes) -> dict[int, float]:
    """The bytes that may come next where blanks may: one of them, or a part's first.

    Args:
        parts: first bytes of the parts that may come, or the end.
    """
    bare = text.rstrip(BLANKS)
    written = text[len(bare) :]
    following: list[int] = []
    for style, part in itertools.product(styles_of(text), parts):
        blanks = blanks_before(part, bare, style)
        if blanks.startswith(written):
            following.append([*blanks, part][len(written)])
    return {byte: LAYOUT_ODDS * n / len(following) for byte, n in Counter(following).items()}
