"""Streamed answers that are told apart by a number, and what their readers see of a failure."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx

PROMPTS = (
    "Write a short story about a lighthouse keeper and a storm.",
    "List the numbers from one to thirty in words:",
    "Explain in simple words why the sky is blue.",
)
NUM_STREAMS = 2 * len(PROMPTS)


def wish(number: int) -> dict[str, Any]:
    sampled = {"temperature": 1.0, "seed": number} if number % 2 else {"temperature": 0.0}
    prompt = PROMPTS[number % len(PROMPTS)]
    return {"prompt": prompt, "max_tokens": 96, "ignore_eos": True, "stream": True} | sampled


async def stream(client: httpx.AsyncClient, number: int, begun: asyncio.Event) -> tuple[str, float]:
    """The whole text, and the longest pause between two pieces of it."""
    text, pause_s, last = "", 0.0, time.monotonic()
    async with client.stream("POST", "/v1/completions", json=wish(number)) as answer:
        assert answer.status_code == httpx.codes.OK
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            frame = json.loads(line.removeprefix("data: "))
            assert "error" not in frame, frame
            now = time.monotonic()
            if text:
                pause_s = max(pause_s, now - last)
            last = now
            text += "".join(choice["text"] for choice in frame["choices"])
            if len(text) > 40:
                begun.set()
    return text, pause_s


class Streams:
    """All of them at once."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
        self._running = [
            asyncio.create_task(stream(client, number, begun))
            for number, begun in enumerate(self._begun)
        ]

    async def begin(self) -> None:
        """Wait until two are in mid-stream."""
        await asyncio.gather(*(event.wait() for event in self._begun[:2]))

    async def end(self) -> tuple[list[str], float]:
        """The texts, and the longest pause of all."""
        given = await asyncio.gather(*self._running)
        return [text for text, _ in given], max(pause_s for _, pause_s in given)
