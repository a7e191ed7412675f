"""Reading an answer out of the events of its stream, in the OpenAI API's two shapes."""

from __future__ import annotations

import json
from typing import Any

from loadtest.acceptance import account_of
from loadtest.records import Chunk, Outcome, RequestRecord

DONE = b"[DONE]"
TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")
DETAIL_CHARACTERS = 200


class StreamFailure(Exception):
    """The stream told of a failure, or was not what it should be."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = one_line(detail)


class AnswerReader:
    """Writes what the events say into a record.

    An event without text, token ids and growing usage (such as the opening role of a chat) is no
    chunk: it brings no token.
    """

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self.done = False
        self.num_seen = 0
        """Tokens so far as far as they can be told while reading: at least one a chunk."""

    def take(self, data: bytes, at_s: float) -> None:
        """One event.

        Raises:
            StreamFailure: for an error in the stream, or an event of another shape.
        """
        if data == DONE:
            self.done = True
            return
        try:
            event = json.loads(data)
            if event.get("error"):
                raise StreamFailure(Outcome.ERROR_EVENT, error_message(event))
            self._take_event(event, at_s)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            detail = f"{type(error).__name__} in an event of {len(data)} bytes"
            raise StreamFailure(Outcome.BAD_STREAM, detail) from error

    def close(self) -> None:
        """The stream has ended in good order: was the answer whole?

        Raises:
            StreamFailure: if not.
        """
        if self._record.finish_reason is None:
            raise StreamFailure(Outcome.TRUNCATED, "no finish reason")
        if not self._record.chunks:
            raise StreamFailure(Outcome.EMPTY, f"finish reason {self._record.finish_reason}")

    def _take_event(self, event: dict[str, Any], at_s: float) -> None:
        record = self._record
        usage = event.get("usage")
        if usage:
            record.prompt_tokens = _count(usage, "prompt_tokens")
            record.completion_tokens = _count(usage, "completion_tokens")
            record.cached_tokens = _count(usage.get("prompt_tokens_details") or {}, "cached_tokens")
        if account := account_of(event):
            record.speculation = account
        for choice in event["choices"]:
            self._take_choice(choice, usage, at_s)

    def _take_choice(
        self, choice: dict[str, Any], usage: dict[str, Any] | None, at_s: float
    ) -> None:
        record = self._record
        text = (choice["text"] or "") if "text" in choice else _delta_text(choice["delta"])
        token_ids = choice.get("token_ids")
        if not isinstance(text, str) or not isinstance(token_ids, list | None):
            raise TypeError("text and token ids")
        if reason := choice.get("finish_reason"):
            record.finish_reason = str(reason)
        if not text and not token_ids:
            return
        if token_ids:
            record.token_ids.extend(token_ids)
        used = record.completion_tokens if usage else None
        num_ids = None if token_ids is None else len(token_ids)
        record.chunks.append(Chunk(at_s, text, num_ids, used))
        self.num_seen = max(self.num_seen + (num_ids or 1), used or 0)


def error_message(body: Any) -> str:  # noqa: ANN401 - whatever the server sent
    """The message of an error body, in the shapes that servers use."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return one_line(str(message))


def one_line(text: str) -> str:
    """What a stranger said, fit for a terminal and a file: short, printable, no line ends."""
    short = " ".join(text[: 4 * DETAIL_CHARACTERS].split())[:DETAIL_CHARACTERS]
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in short
    )


def _count(usage: dict[str, Any], name: str) -> int | None:
    value = usage.get(name)
    if value is not None and not (isinstance(value, int) and value >= 0):
        raise TypeError(f"{name} is no count")
    return value


def _delta_text(delta: dict[str, Any]) -> str:
    parts = [delta[name] for name in TEXT_FIELDS if delta.get(name)]
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        parts += [function.get("name") or "", function.get("arguments") or ""]
    return "".join(parts)
