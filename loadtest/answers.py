"""Reading an answer out of the events of its stream, in the OpenAI API's two shapes."""

from __future__ import annotations

import json
from typing import Any

from loadtest.records import Chunk, Outcome, RequestRecord

DONE = b"[DONE]"
TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")
DETAIL_CHARACTERS = 200


class StreamFailure(Exception):
    """The stream told of a failure, or was not what it should be."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail[:DETAIL_CHARACTERS]


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
        except (ValueError, KeyError, TypeError, AttributeError) as error:
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
            record.prompt_tokens = usage.get("prompt_tokens")
            record.completion_tokens = usage.get("completion_tokens")
            details = usage.get("prompt_tokens_details") or {}
            record.cached_tokens = details.get("cached_tokens")
        if metrics := event.get("metrics"):
            record.speculation = metrics.get("speculative_decoding") or {}
        for choice in event["choices"]:
            self._take_choice(choice, usage, at_s)

    def _take_choice(
        self, choice: dict[str, Any], usage: dict[str, Any] | None, at_s: float
    ) -> None:
        record = self._record
        text = choice["text"] if "text" in choice else _delta_text(choice["delta"])
        token_ids = choice.get("token_ids")
        record.finish_reason = choice.get("finish_reason") or record.finish_reason
        if not text and not token_ids:
            return
        if token_ids:
            record.token_ids.extend(token_ids)
        used = usage.get("completion_tokens") if usage else None
        num_ids = None if token_ids is None else len(token_ids)
        record.chunks.append(Chunk(at_s, text, num_ids, used))
        self.num_seen += num_ids or 1


def error_message(body: Any) -> str:  # noqa: ANN401 - whatever the server sent
    """The message of an error body, in the shapes that servers use."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:DETAIL_CHARACTERS]


def _delta_text(delta: dict[str, Any]) -> str:
    parts = [delta[name] for name in TEXT_FIELDS if delta.get(name)]
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        parts += [function.get("name") or "", function.get("arguments") or ""]
    return "".join(parts)
