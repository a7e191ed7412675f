"""One streamed answer over HTTP, with the raw times of its chunks."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from actors.errors import PeerError


@dataclass
class Answer:
    """What one request brought.

    Attributes:
        sent_s, chunk_s: monotonic times of sending and of each chunk that carried tokens.
        chunk_tokens: tokens in each of those chunks.
        token_ids: all of them.
        speculation: the server's own account of the request.
    """

    sent_s: float
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    speculation: dict[str, Any] = field(default_factory=dict)

    @property
    def time_to_first_token_s(self) -> float:
        return self.chunk_s[0] - self.sent_s

    @property
    def decode_s(self) -> float:
        """From the first chunk of tokens to the last."""
        return self.chunk_s[-1] - self.chunk_s[0]

    @property
    def num_decoded(self) -> int:
        """Tokens that came after the first chunk."""
        return len(self.token_ids) - self.chunk_tokens[0]


async def stream_chat(
    client: httpx.AsyncClient, text: str, max_tokens: int, options: Mapping[str, object]
) -> Answer:
    """Ask for one chat answer as a stream.

    Raises:
        PeerError: the server answered with an error, or broke off.
    """
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "stream": True,
        "return_token_ids": True,
        **options,
    }
    answer = Answer(time.monotonic())
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise PeerError(f"HTTP {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                _take_chunk(answer, json.loads(line[len("data: ") :]))
    if answer.finish_reason is None:
        raise PeerError("the stream broke off")
    return answer


def _take_chunk(answer: Answer, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        raise PeerError(f"error in the stream: {chunk['error']}")
    metrics = chunk.get("metrics")
    if metrics:
        answer.speculation = metrics["speculative_decoding"]
    for choice in chunk["choices"]:
        token_ids = choice.get("token_ids") or []
        if token_ids:
            answer.chunk_s.append(time.monotonic())
            answer.chunk_tokens.append(len(token_ids))
            answer.token_ids.extend(token_ids)
        answer.prompt_token_ids = choice.get("prompt_token_ids") or answer.prompt_token_ids
        answer.text += choice.get("delta", {}).get("content") or ""
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
