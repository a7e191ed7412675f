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
