"""How many tokens each chunk brought, and where that knowledge comes from.

One chunk is not one token: a server that speculates sends several at once. In order of trust:
the chunk's own token ids; the usage in each chunk; the model's tokenizer over the answer's text;
the whole answer's usage shared out by characters. If none is to be had, a chunk counts as one
token, and the report says that its token figures are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from loadtest.records import Chunk, RequestRecord
from loadtest.tokenizer import TextRuler


class CountSource(StrEnum):
    """Where token counts come from, best first."""

    TOKEN_IDS = "token_ids"
    USAGE = "usage"
    TOKENIZER = "tokenizer"
    SHARED = "shared"
    CHUNKS = "chunks"


SOURCE_MEANINGS: dict[CountSource, str] = {
    CountSource.TOKEN_IDS: "the token ids in every chunk",
    CountSource.USAGE: "the server's usage in every chunk",
    CountSource.TOKENIZER: "the given tokenizer over the text; the last chunk holds what the "
    "server's usage counts beyond it",
    CountSource.SHARED: "the answer's total by the server's usage, shared out by characters",
    CountSource.CHUNKS: "NOT KNOWN: a chunk is counted as one token. Figures by token are unsound",
}


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of each chunk of one answer.

    Attributes:
        differs_by: the server's final usage less what was counted; 0 where they agree or where
            the count is made from the usage; None without a usage.
    """

    source: CountSource
    per_chunk: tuple[int, ...]
    differs_by: int | None

    @property
    def total(self) -> int:
        return sum(self.per_chunk)


def count_tokens(record: RequestRecord, ruler: TextRuler | None = None) -> TokenCounts:
    """Count by the best source that this answer has."""
    chunks, total = record.chunks, record.completion_tokens
    if all(chunk.num_ids is not None for chunk in chunks):
        counted = [chunk.num_ids or 0 for chunk in chunks]
        return _counts(CountSource.TOKEN_IDS, counted, total)
    if all(chunk.usage_tokens is not None for chunk in chunks) and chunks[-1].usage_tokens:
        counted = _steps(chunks)
        if total is not None and total > sum(counted):
            counted[-1] += total - sum(counted)  # a token without text, told of at the end
        return _counts(CountSource.USAGE, counted, total)
    if ruler is not None:
        counted = _measured(record, ruler)
        if total is not None and total > sum(counted):
            counted[-1] += total - sum(counted)
        return _counts(CountSource.TOKENIZER, counted, total)
    if total:
        return _counts(CountSource.SHARED, _shared(chunks, total), total)
    return _counts(CountSource.CHUNKS, [1] * len(chunks), None)


def _counts(source: CountSource, counted: Sequence[int], total: int | None) -> TokenCounts:
    differs_by = None if total is None else total - sum(counted)
    return TokenCounts(source, tuple(_begun(counted)), differs_by)


def _begun(counted: Sequence[int]) -> list[int]:
    """The first chunk brought the begin of a token, whatever chunk that is counted with."""
    moved = list(counted)
    if moved and not moved[0] and any(moved):
        moved[next(place for place, tokens in enumerate(moved) if tokens)] -= 1
        moved[0] = 1
    return moved


def _steps(chunks: Sequence[Chunk]) -> list[int]:
    totals = [0, *(chunk.usage_tokens or 0 for chunk in chunks)]
    return [max(0, after - before) for before, after in pairwise(totals)]


def _measured(record: RequestRecord, ruler: TextRuler) -> list[int]:
    """A token belongs to the chunk that holds its last character."""
    ends = ruler.ends(record.text)
    counted, place, characters = [], 0, 0
    for chunk in record.chunks:
        characters += len(chunk.text)
        before = place
        while place < len(ends) and ends[place] <= characters:
            place += 1
        counted.append(place - before)
    return counted


def _shared(chunks: Sequence[Chunk], total: int) -> list[int]:
    """By cumulative rounding, so that the parts add up to the total; then every chunk with a text
    gets a token, out of the largest, as long as there are enough.
    """
    characters = sum(len(chunk.text) for chunk in chunks)
    counted, given, seen = [], 0, 0
    for chunk in chunks:
        seen += len(chunk.text)
        share = round(total * seen / characters) if characters else 0
        counted.append(share - given)
        given = share
    counted[-1] += total - given
    for place, chunk in enumerate(chunks):
        if chunk.text and not counted[place] and (most := max(counted)) > 1:
            counted[counted.index(most)] -= 1
            counted[place] = 1
    return counted
