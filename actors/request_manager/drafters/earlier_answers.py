"""Earlier answers in one ring of memory, and where they read like the end of a text.

Stands for SuffixDecoding's global suffix tree: a node of that tree is a set of places that read
alike, its count their number, its children what follows there. Places are found by hash chains as
in DEFLATE: each is linked to the last one before it that ends in the same few tokens. So the memory
is a fixed number of bytes a token, adding one takes constant time, and what is dropped leaves
nothing behind: no link leads beyond the ring's tail. Of very many places that read alike the most
recent ones stand for all.

First in, first out, with a second chance: answers are dropped whole, the oldest first, whenever it
was last of use; one that was of use since it was added is added anew instead, at most two of these
for each answer that comes. Assumes token ids that fit 32 bits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from actors.request_manager.drafters.matches import ENOUGH_PLACES, Match, match_length

BYTES_PER_TOKEN = 32
"""A token and its two links, its share of the two tables, and of the list of answers."""
ORDERS = (4, 2)
"""Tokens that linked places have in common at least; the longer matches are looked for first."""
MAX_PLACES = 32
"""Places that are looked at along a chain."""
LEAST_TOKENS = 4
"""Of an answer that is kept."""
MAX_STAYS = 2
"""Answers that are let stay in place of others while one is added."""
MAX_DROPPED = 1 / 4
"""Entries of answers that were dropped, for each that is kept, before these move up."""

_BETWEEN = -1  # stands behind each answer, and is no token


class EarlierAnswers:
    """Answers, kept within a number of bytes.

    Positions count all tokens that were ever added; position p is in slot p modulo the ring's size.

    Args:
        max_bytes: for everything that is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._size = max_bytes // BYTES_PER_TOKEN
        self._tokens = array("i", bytes(4 * self._size))
        self._links = [array("I", bytes(4 * self._size)) for _ in ORDERS]  # how far back; 0: none
        table_size = 1 << self._size.bit_length() - 1  # at most one entry a token
        self._mask = table_size - 1
        self._last = [array("q", b"\xff" * 8 * table_size) for _ in ORDERS]  # by hash; -1: none
        self._begins = array("q")  # where each answer begins
        self._was_used = bytearray()  # and whether it was, since it was added
        self._num_dropped = 0  # of these, the first
        self._tail = self._head = 0

    def __len__(self) -> int:
        """Answers that are kept."""
        return len(self._begins) - self._num_dropped

    def __iter__(self) -> Iterator[list[int]]:
        """The answers that are kept, the oldest first."""
        for number in range(self._num_dropped, len(self._begins)):
            yield self._answer(number)

    @property
    def num_bytes(self) -> int:
        """What everything takes."""
        arrays = (self._tokens, *self._links, *self._last, self._begins)
        return sum(len(one) * one.itemsize for one in arrays) + len(self._was_used)

    def add(self, answer: Sequence[int]) -> None:
        """Keep an answer; one that is too short or larger than all the memory is left out."""
        if LEAST_TOKENS <= len(answer) < self._size:
            self._make_room(len(answer) + 1)
            self._append(answer)

    def matches(self, end: Sequence[int], max_length: int) -> list[Match]:
        """Where it reads like the end of a text, and how it goes on there.

        Args:
            end: the last tokens of the text; longer matches are not told apart.
            max_length: of continuations.
        """
        lengths = self._places(end)
        longest = max(lengths.values(), default=0)
        found = []
        for position, length in lengths.items():
            if length == longest:
                self._was_used[self._number(position)] = True
            continuation = self._read(position + 1, min(max_length, self._head - position - 1))
            if _BETWEEN in continuation:
                del continuation[continuation.index(_BETWEEN) :]
            if continuation:
                found.append(Match(length, continuation))
        return found

    def _places(self, end: Sequence[int]) -> dict[int, int]:
        """Positions at which the end of a text has been read, with the lengths of the matches."""
        lengths: dict[int, int] = {}
        for order, links, last in zip(ORDERS, self._links, self._last, strict=True):
            if len(end) < order or len(lengths) >= ENOUGH_PLACES:
                continue
            position = last[self._place(end[-order:])]
            for _ in range(MAX_PLACES):
                if position < self._tail:
                    break
                most = min(len(end), position - self._tail + 1)
                length = match_length(end, self._tokens, position % self._size, most)
                if length >= order:
                    lengths[position] = length
                back = links[position % self._size]
                if not back:
                    break
                position -= back
        return lengths

    def _number(self, position: int) -> int:
        """Of the answer that has this position."""
        return bisect_right(self._begins, position, self._num_dropped) - 1

    def _answer(self, number: int) -> list[int]:
        begin = self._begins[number]
        is_last = number == len(self._begins) - 1
        end = self._head if is_last else self._begins[number + 1]
        return self._read(begin, end - begin - 1)

    def _read(self, position: int, count: int) -> list[int]:
        begin = position % self._size
        read = self._tokens[begin : begin + count].tolist()
        return read + self._tokens[: count - len(read)].tolist()

    def _place(self, tokens: Sequence[int]) -> int:
        return hash(tuple(tokens)) & self._mask

    def _make_room(self, count: int) -> None:
        num_stays = 0
        while self._head + count - self._tail > self._size:
            number = self._num_dropped
            oldest, was_used = self._answer(number), self._was_used[number]
            self._drop_oldest()
            if was_used and num_stays < MAX_STAYS:
                num_stays += 1
                self._append(oldest)

    def _drop_oldest(self) -> None:
        self._num_dropped += 1
        self._tail = self._begins[self._num_dropped] if len(self) else self._head
        if self._num_dropped > MAX_DROPPED * len(self):
            del self._begins[: self._num_dropped], self._was_used[: self._num_dropped]
            self._num_dropped = 0

    def _append(self, answer: Sequence[int]) -> None:
        begin = self._head
        self._begins.append(begin)
        self._was_used.append(False)
        for position, token in enumerate((*answer, _BETWEEN), start=begin):
            self._tokens[position % self._size] = token
        self._head += len(answer) + 1
        for order, links, last in zip(ORDERS, self._links, self._last, strict=True):
            for position in (*range(begin, begin + order - 1), self._head - 1):
                links[position % self._size] = 0
            for end in range(order, len(answer) + 1):
                place, position = self._place(answer[end - order : end]), begin + end - 1
                before, last[place] = last[place], position
                links[position % self._size] = position - before if before >= self._tail else 0
