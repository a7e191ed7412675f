"""One streamed completion with as little work as can be: bytes now, their meaning later.

The client runs on the cores that it measures, so it looks only for the first token and the end.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from actors.errors import PeerError

END = b"data: [DONE]"
TEXT = b'"text":"'


@dataclass(frozen=True)
class RawAnswer:
    """A stream to its end.

    Attributes:
        first_token_s: from sending to the first token.
        data: all that came.
        arrivals: when a piece came, by the monotonic clock, and how much had come then.
    """

    first_token_s: float
    data: bytes
    arrivals: Sequence[tuple[float, int]] = ()

    @property
    def num_tokens(self) -> int:
        return int(self._last("usage")["completion_tokens"])

    @property
    def num_llm_steps(self) -> int:
        """Steps after the prefill."""
        return self._speculation("num_llm_steps")

    @property
    def num_draft_nodes(self) -> int:
        """Of all these steps' trees."""
        return self._speculation("num_draft_tokens")

    @property
    def token_ids(self) -> tuple[int, ...]:
        """If the request asked for them."""
        return tuple(
            token
            for chunk in self._chunks()
            for choice in chunk["choices"]
            for token in choice.get("token_ids") or ()
        )

    def tokens_by(self, time_s: float) -> int:
        """How many had come by then, if the request asked for their ids."""
        size = max((size for at_s, size in self.arrivals if at_s <= time_s), default=0)
        return len(RawAnswer(self.first_token_s, self.data[:size]).token_ids)

    def _speculation(self, figure: str) -> int:
        return int(self._last("metrics")["speculative_decoding"][figure])

    def _last(self, field: str) -> dict[str, Any]:
        found: dict[str, Any] = next(
            chunk[field] for chunk in reversed([*self._chunks()]) if chunk.get(field)
        )
        return found

    def _chunks(self) -> Iterator[dict[str, Any]]:
        for line in self.data.splitlines(keepends=True):
            if line.startswith(b"data: {") and line.endswith(b"\n"):
                yield json.loads(line[len(b"data: ") :])


async def stream_completion(
    url: str, prompt: Sequence[int], max_tokens: int, more: Mapping[str, Any]
) -> RawAnswer:
    """Stream one greedy answer of just so many tokens, over a connection of its own.

    Args:
        prompt: token ids.
        more: fields of the request, over those that stand here.

    Raises:
        PeerError: it breaks off.
    """
    body = {
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    address = urlsplit(url)
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        sent_s = time.monotonic()
        writer.write(head.encode() + content)
        first_token_s, data = None, bytearray()
        arrivals: list[tuple[float, int]] = []
        while piece := await reader.read(65536):
            data += piece
            arrivals.append((time.monotonic(), len(data)))
            if first_token_s is None and TEXT in data:
                first_token_s = arrivals[-1][0] - sent_s
    finally:
        writer.close()
    if first_token_s is None or END not in data:
        raise PeerError(f"the stream broke off: {data[-200:].decode(errors='replace')}")
    return RawAnswer(first_token_s, bytes(data), arrivals)
