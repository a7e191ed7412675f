"""Places where a text has read as it does now, and what they say may come next.

After SuffixDecoding (Oliaro et al., NeurIPS 2025): the places are a node of a suffix tree, those
that go on alike are its child, and the child's probability is its share of the count. Here a place
counts by the square of the length of its match, and what follows short matches is trusted less:
m / (m + 1) for a match of m tokens, the path's own counted in. So trees are the deeper the longer
the matches are; a limit of so many tokens for each that matches, as SuffixDecoding has, would cut
what the LLM accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

ENOUGH_PLACES = 8
"""Where so many have been found, shorter matches are of no interest."""


class Match(NamedTuple):
    """A place where a text has read as it does now.

    Attributes:
        length: tokens that are the same.
        continuation: what came then.
    """

    length: int
    continuation: Sequence[int]


class Alike(NamedTuple):
    """Matches that go on alike.

    Attributes:
        matches: of which the first `depth` tokens of the continuation are the same.
    """

    matches: Sequence[Match]
    depth: int = 0


def ways_on(here: Alike) -> Iterator[tuple[int, float, Alike]]:
    """The tokens that follow, with their probabilities and the matches that go on with each."""
    depth = here.depth
    families: dict[int, list[Match]] = {}
    total = 0
    for match in here.matches:
        total += match.length * match.length
        if depth < len(match.continuation):
            families.setdefault(match.continuation[depth], []).append(match)
    for token, family in families.items():
        weight = sum(match.length * match.length for match in family)
        matched = max(match.length for match in family) + depth
        yield token, matched / (matched + 1) * weight / total, Alike(family, depth + 1)


def match_length(text: Sequence[int], known: Sequence[int], place: int, most: int) -> int:
    """How many tokens of what is known, as far as a place, are the last ones of a text.

    Args:
        place: of the last token that is compared; what is known goes on at its end where it is
            a ring.
        most: no more tokens are compared.
    """
    length = 0
    while length < most and known[place - length] == text[-1 - length]:
        length += 1
    return length


def continuation(text: Sequence[int], place: int, max_depth: int) -> list[int]:
    """How a text goes on behind a place of its own.

    One that runs into the end goes on by copying itself, so that text that repeats itself is
    continued to full depth.
    """
    period = len(text) - 1 - place
    path = list(text[place + 1 : place + 1 + max_depth])
    while len(path) < max_depth:
        path.append(path[len(path) - period])
    return path
