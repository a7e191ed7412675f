"""Counts of what follows each few tokens, in a fixed number of bytes.

Contexts of one length share a table of buckets, found by hash. A bucket counts the few likeliest
next tokens of one context, the likeliest first. A token that has no place wears down the last one
until it takes that; a context that finds its bucket taken wears down the other's tokens, the last
first, until none is left and it takes the bucket (after Misra and Gries 1982). Counts that grow
large are halved, all of a bucket: so what is old fades, and what is rare makes way.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

NUM_WAYS = 4
"""Next tokens of a context that are counted."""
MAX_COUNT = 255
BYTES_PER_BUCKET = 4 + NUM_WAYS * (4 + 1)
"""Which context it is, and its next tokens with their counts."""

_TAG_SHIFT, _TAG_MASK = 31, (1 << 31) - 1  # bits of the hash that the place in the table leaves


class NgramTable:
    """What follows contexts of one length.

    Args:
        max_bytes: for everything that is kept; a power of two of buckets fits in.
    """

    def __init__(self, max_bytes: int) -> None:
        num_buckets = 1 << (max_bytes // BYTES_PER_BUCKET).bit_length() - 1
        self._mask = num_buckets - 1
        self._tags = array("I", bytes(4 * num_buckets))
        self._tokens = array("i", bytes(4 * NUM_WAYS * num_buckets))
        self._counts = array("B", bytes(NUM_WAYS * num_buckets))

    @property
    def num_bytes(self) -> int:
        """What everything takes."""
        return sum(len(one) * one.itemsize for one in (self._tags, self._tokens, self._counts))

    def add(self, context: Sequence[int], token: int) -> None:
        """Count a token behind a context."""
        bucket, tag = self._find(context)
        begin = bucket * NUM_WAYS
        tokens, counts = self._tokens, self._counts
        if self._tags[bucket] != tag:
            self._wear_down(begin)
            if counts[begin]:
                return
            self._tags[bucket] = tag
        for way in range(begin, begin + NUM_WAYS):
            if not counts[way]:
                tokens[way], counts[way] = token, 1
                return
            if tokens[way] == token:
                self._count(way, begin)
                return
        last = self._wear_down(begin)
        if not counts[last]:
            tokens[last], counts[last] = token, 1

    def ways(self, context: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The tokens that were counted behind a context, with their counts, the largest first."""
        bucket, tag = self._find(context)
        begin = bucket * NUM_WAYS
        if self._tags[bucket] == tag:
            for way in range(begin, begin + NUM_WAYS):
                if self._counts[way]:
                    yield self._tokens[way], self._counts[way]

    def _count(self, way: int, begin: int) -> None:
        """One more for one of a bucket's tokens, which may move up."""
        tokens, counts = self._tokens, self._counts
        if counts[way] == MAX_COUNT:
            for one in range(begin, begin + NUM_WAYS):
                counts[one] //= 2
        counts[way] += 1
        while way > begin and counts[way] > counts[way - 1]:
            above = way - 1
            tokens[way], tokens[above] = tokens[above], tokens[way]
            counts[way], counts[above] = counts[above], counts[way]
            way = above

    def _wear_down(self, begin: int) -> int:
        """One less for the last of a bucket's tokens, if it has any; returns the token's way."""
        counts, way = self._counts, begin + NUM_WAYS - 1
        while way > begin and not counts[way]:
            way -= 1
        if counts[way]:
            counts[way] -= 1
        return way

    def _find(self, context: Sequence[int]) -> tuple[int, int]:
        key = hash(tuple(context))
        return key & self._mask, key >> _TAG_SHIFT & _TAG_MASK
