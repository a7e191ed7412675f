"""The bytes of a scripted answer: events in the OpenAI API's two shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from loadtest.stub.script import WORD, Behaviour

DONE = b"data: [DONE]\n\n"


class Frames:
    """Events of one answer, in order.

    Token ids are the places of the tokens in the answer, so equal requests have equal answers.
    """

    def __init__(self, behaviour: Behaviour, body: dict[str, Any], *, chat: bool) -> None:
        self._behaviour = behaviour
        self._chat = chat
        options = body.get("stream_options") or {}
        self._ids = behaviour.counts == "token_ids" and bool(body.get("return_token_ids"))
        self._usage_each = behaviour.counts == "usage" and bool(
            options.get("continuous_usage_stats")
        )
        self._usage_last = behaviour.counts != "none" and bool(options.get("include_usage"))
        self.max_tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        self._told = 0
        self._steps: list[int] = []

    def opening(self) -> Iterator[bytes]:
        """The role of a chat, which carries no token."""
        if self._chat:
            yield self._event([self._choice({"delta": {"role": "assistant", "content": ""}})])

    def chunk(self, tokens: int) -> bytes:
        """The next tokens."""
        text = WORD * tokens
        content = {"delta": {"content": text}} if self._chat else {"text": text}
        ids = {"token_ids": list(range(self._told, self._told + tokens))} if self._ids else {}
        self._told += tokens
        self._steps.append(tokens)
        return self._event([self._choice(content | ids)])

    def closing(self) -> Iterator[bytes]:
        """Finish reason, usage and metrics, `[DONE]`."""
        content: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        yield self._event([self._choice(content, "stop")])
        if self._usage_last:
            extra = {"metrics": self._metrics()}
            usage = self._usage(self._told + self._behaviour.usage_error)
            yield _frame({"choices": [], "usage": usage} | extra)
        yield DONE

    def error(self) -> bytes:
        return _frame({"error": {"message": "scripted error", "type": "scripted"}})

    def garbage(self) -> bytes:
        return b"data: {not json\n\n"

    def _event(self, choices: list[dict[str, Any]]) -> bytes:
        usage = {"usage": self._usage(self._told)} if self._usage_each else {}
        return _frame({"choices": choices} | usage)

    def _choice(self, content: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {"index": 0, **content, "finish_reason": reason}

    def _usage(self, tokens: int) -> dict[str, int]:
        return {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}

    def _metrics(self) -> dict[str, Any]:
        """As if each chunk after the first were a step whose tokens but the last were drafts."""
        accepted = [tokens - 1 for tokens in self._steps[1:]]
        histogram = [accepted.count(length) for length in range(max(accepted, default=0) + 1)]
        return {
            "speculative_decoding": {
                "num_llm_steps": len(accepted),
                "num_spec_steps": len(accepted),
                "num_draft_tokens": sum(accepted) + len(accepted),
                "num_accepted_draft_tokens": sum(accepted),
                "acceptance_histogram": histogram,
            }
        }


def _frame(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
