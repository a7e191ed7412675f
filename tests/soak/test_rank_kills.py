"""Ranks of a split LLM that are killed or stopped in mid-stream: the text goes on, unchanged."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest import Server, ready_configuration, serving
from streams import NUM_STREAMS, Streams, stream

NUM_STRIKES = int(os.environ.get("SOAK_KILLS", "10"))
NUM_RANKS = 2
STEP_TIMEOUT_S = 5.0
PATIENCE_S = 180.0


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded model in two stages."""
    folder = tmp_path_factory.mktemp("server")
    content = ready_configuration("smollm2-float32.yaml")
    content["llm"] = {"pipeline_parallel": NUM_RANKS, "step_timeout_s": STEP_TIMEOUT_S}
    content["scheduler"] = {"kv_memory_bytes": 1 << 27}
    with serving(content, folder) as running:
        yield running


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_struck_in_mid_stream(server: Server, sent: signal.Signals) -> None:
    pauses = []
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
        numbers = range(NUM_STREAMS)
        expected = [(await stream(client, number, asyncio.Event()))[0] for number in numbers]
        for strike in range(NUM_STRIKES):
            streams = Streams(client)
            await streams.begin()
            ranks = await asyncio.to_thread(server.pids, "LLMRank")
            assert len(ranks) == NUM_RANKS
            os.kill(ranks[strike % NUM_RANKS], sent)
            texts, pause_s = await streams.end()
            assert texts == expected
            pauses.append(pause_s)
    shown = ", ".join(f"{pause_s:.1f}" for pause_s in pauses)
    print(f"\n{sent.name}: longest pause of each of {NUM_STRIKES} strikes in s: {shown}")
    assert not any(server.gauges().values())
