"""From the raw times of one answer to its latencies. Pure arithmetic; the report defines the words.

A *delivery* is what one read of the socket brought: chunks with one arrival time. Its gap is the
time since the delivery before it. The first delivery has no gap; its time is the TTFT's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

from loadtest.records import Outcome, RequestRecord
from loadtest.tokens import TokenCounts

DEFINITIONS: dict[str, str] = {
    "ttft_s": "Time to first token: from the sending of the request to the arrival of the first "
    "chunk that carries a token. A chunk that only opens the answer carries none.",
    "ttft_from_schedule_s": "The same from the moment when the request was due. When the server or "
    "a limit of open requests holds requests back, only this shows what a user waits.",
    "e2e_s": "End to end: from the sending to the end of the stream.",
    "e2e_from_schedule_s": "The same from the moment when the request was due.",
    "tpot_s": "Time per output token of one answer: from its first delivery of tokens to its last, "
    "divided by the tokens that came after the first delivery. One value for each answer; none for "
    "an answer that came in one delivery.",
    "itl_token_s": "Inter-token latency by token: the gap before each delivery, divided by its "
    "tokens, counted once for each of them. One value for each token after the first delivery.",
    "chunk_gap_s": "The gaps between deliveries as they were, whatever they carried.",
    "tokens_per_chunk": "Tokens in each chunk (event of the stream) that carried any.",
}


@dataclass(frozen=True)
class Timing:
    """The latencies of one whole answer, in seconds, and what it consists of.

    Attributes:
        gaps_s, gap_tokens: of each delivery after the first.
        chunk_tokens: of each chunk that carried any.
    """

    ttft_s: float
    ttft_from_schedule_s: float
    e2e_s: float
    e2e_from_schedule_s: float
    tpot_s: float | None
    gaps_s: tuple[float, ...]
    gap_tokens: tuple[int, ...]
    chunk_tokens: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return sum(self.chunk_tokens)

    @property
    def longest_gap_s(self) -> float:
        return max(self.gaps_s, default=0.0)


def timing(record: RequestRecord, counts: TokenCounts) -> Timing | None:
    """None for a request that did not end well, or that brought no token."""
    found = deliveries(record, counts)
    if record.outcome is not Outcome.OK or not found:
        return None
    if record.sent_s is None or record.end_s is None:
        return None
    times = [at_s for at_s, _ in found]
    gaps = tuple(after - before for before, after in pairwise(times))
    later = tuple(tokens for _, tokens in found[1:])
    return Timing(
        ttft_s=times[0] - record.sent_s,
        ttft_from_schedule_s=times[0] - record.scheduled_s,
        e2e_s=record.end_s - record.sent_s,
        e2e_from_schedule_s=record.end_s - record.scheduled_s,
        tpot_s=(times[-1] - times[0]) / sum(later) if later else None,
        gaps_s=gaps,
        gap_tokens=later,
        chunk_tokens=tuple(tokens for tokens in counts.per_chunk if tokens),
    )


def deliveries(record: RequestRecord, counts: TokenCounts) -> Sequence[tuple[float, int]]:
    """Arrival time and tokens of each read that brought any."""
    timed = [
        (chunk.at_s, tokens)
        for chunk, tokens in zip(record.chunks, counts.per_chunk, strict=True)
        if tokens
    ]
    return [
        (at_s, sum(tokens for _, tokens in together))
        for at_s, together in groupby(timed, key=itemgetter(0))
    ]
