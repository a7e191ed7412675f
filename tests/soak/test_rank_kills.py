"""Ranks of a split LLM that are killed or stopped in mid-stream: the text goes on, unchanged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Server, ready_configuration, serving

NUM_STRIKES = int(os.environ.get("SOAK_KILLS", "10"))
NUM_RANKS = 2
STEP_TIMEOUT_S = 5.0
PATIENCE_S = 180.0
PROMPTS = (
    "Write a short story about a lighthouse keeper and a storm.",
    "List the numbers from one to thirty in words:",
    "Explain in simple words why the sky is blue.",
)


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded model in two stages."""
    folder = tmp_path_factory.mktemp("server")
    content = ready_configuration("smollm2-float32.yaml")
    content["llm"] = {"pipeline_parallel": NUM_RANKS, "step_timeout_s": STEP_TIMEOUT_S}
    content["scheduler"] = {"kv_memory_bytes": 1 << 27}
    with serving(content, folder) as running:
        yield running


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


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_struck_in_mid_stream(server: Server, sent: signal.Signals) -> None:
    pauses = []
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
        numbers = range(2 * len(PROMPTS))
        expected = [(await stream(client, number, asyncio.Event()))[0] for number in numbers]
        for strike in range(NUM_STRIKES):
            begun = [asyncio.Event() for _ in numbers]
            running = [asyncio.create_task(stream(client, n, begun[n])) for n in numbers]
            await asyncio.gather(*(event.wait() for event in begun[:2]))
            ranks = await asyncio.to_thread(server.pids, "LLMRank")
            assert len(ranks) == NUM_RANKS
            os.kill(ranks[strike % NUM_RANKS], sent)
            given = await asyncio.gather(*running)
            assert [text for text, _ in given] == expected
            pauses.append(max(pause_s for _, pause_s in given))
    shown = ", ".join(f"{pause_s:.1f}" for pause_s in pauses)
    print(f"\n{sent.name}: longest pause of each of {NUM_STRIKES} strikes in s: {shown}")
    assert not any(server.gauges().values())
