"""What happened to one request, raw: times as they were read from the clock, nothing derived.

All times are those of one monotonic clock (the event loop's), in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a request ended. All but the first three are failures of the server or of the way."""

    OK = "ok"
    CANCELLED = "cancelled"  # by the workload, on purpose
    INTERRUPTED = "interrupted"  # the run ended before the answer did
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    RESET = "reset"
    TIMEOUT = "timeout"
    STALL = "stall"
    HTTP_429 = "http_429"
    HTTP_4XX = "http_4xx"
    HTTP_5XX = "http_5xx"
    NOT_A_STREAM = "not_a_stream"
    BAD_STREAM = "bad_stream"
    ERROR_EVENT = "error_event"
    TRUNCATED = "truncated"
    EMPTY = "empty"

    @property
    def failed(self) -> bool:
        return self not in (Outcome.OK, Outcome.CANCELLED, Outcome.INTERRUPTED)


OUTCOME_MEANINGS: dict[Outcome, str] = {
    Outcome.OK: "a whole answer, closed with a finish reason",
    Outcome.CANCELLED: "hung up on by the workload, as planned",
    Outcome.INTERRUPTED: "still open when the run was ended",
    Outcome.DNS: "the host's name was not found",
    Outcome.CONNECT: "no connection: refused, unreachable, or not made in time",
    Outcome.TLS: "no TLS session: certificate or protocol",
    Outcome.RESET: "the connection broke before or during the answer",
    Outcome.TIMEOUT: "no whole answer within the limit for a request",
    Outcome.STALL: "nothing came for longer than the limit for a silence",
    Outcome.HTTP_429: "refused: too many requests",
    Outcome.HTTP_4XX: "refused: another status 400 to 499",
    Outcome.HTTP_5XX: "status 500 or above",
    Outcome.NOT_A_STREAM: "an answer, but no event stream, or not even HTTP",
    Outcome.BAD_STREAM: "an event that is not JSON, or not of the API's shape",
    Outcome.ERROR_EVENT: "an error reported inside the stream",
    Outcome.TRUNCATED: "the stream closed in good order, but without a finish reason",
    Outcome.EMPTY: "a finish reason, but no token",
}


@dataclass(slots=True)
class Chunk:
    """One event of the stream that told of tokens.

    Attributes:
        at_s: when the read that completed it returned.
        text: what it added to the answer.
        num_ids: token ids that it carried; None if the server sends none.
        usage_tokens: output tokens so far, by the server's usage; None without one.
    """

    at_s: float
    text: str
    num_ids: int | None = None
    usage_tokens: int | None = None


@dataclass(slots=True)
class RequestRecord:
    """One request, from its place in the schedule to its end.

    Attributes:
        index, turn: which planned request; turn of its conversation.
        scheduled_s: when it should have been sent.
        released_s: when nothing but the harness held it back any more: `scheduled_s`, or later if
            a limit of open requests held it.
        sent_s: when it was handed to the HTTP library.
        headers_s: when the status line had come.
        end_s: when the stream was closed, or the failure seen.
        completion_tokens: by the server's usage; so `prompt_tokens`, `cached_tokens`.
        speculation: the server's own account, `metrics.speculative_decoding`.
    """

    index: int
    turn: int
    scheduled_s: float
    released_s: float
    sent_s: float | None = None
    headers_s: float | None = None
    end_s: float | None = None
    chunks: list[Chunk] = field(default_factory=list)
    outcome: Outcome = Outcome.INTERRUPTED
    status: int | None = None
    detail: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    token_ids: list[int] = field(default_factory=list)
    speculation: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def lag_s(self) -> float | None:
        """How late the harness itself sent it."""
        return None if self.sent_s is None else self.sent_s - self.released_s
