"""Parts that die or hang while streams run: every stream goes on, and the server comes back.

Each part once by SIGKILL and once by SIGSTOP, during eight streams, while `/health`, `/ready` and
`/v1/models` are polled all the time. The ingress is left out: its streams end with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest import Server, ready_configuration, serving

NUM_STREAMS = 8
NUM_TOKENS = 160
POLL_S = 0.1
PATIENCE_S = 180.0
PARTS = ("LLMRank", "DraftModel", "RequestManager", "ServeController")


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded model; a step that hangs is given up after five seconds."""
    folder = tmp_path_factory.mktemp("server")
    content = ready_configuration("smollm2.yaml")
    content["llm"] = {"step_timeout_s": 5}
    with serving(content, folder) as running:
        yield running


async def stream(client: httpx.AsyncClient, number: int, begun: asyncio.Event) -> str:
    body = {
        "prompt": f"Chapter {number}. Once upon a time",
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "temperature": 0.8 * (number % 2),
        "seed": number,
        "stream": True,
    }
    text, num_chunks = "", 0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == httpx.codes.OK
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                assert '"error"' not in line, line
                text += json.loads(line[len("data: ") :])["choices"][0]["text"]
                num_chunks += 1
                if num_chunks == 5:
                    begun.set()
    return text


async def streams(client: httpx.AsyncClient, begun: asyncio.Event) -> list[str]:
    return await asyncio.gather(*(stream(client, n, begun) for n in range(NUM_STREAMS)))


async def poll(client: httpx.AsyncClient, path: str, seen: list[int]) -> None:
    while True:
        seen.append((await client.get(path)).status_code)
        await asyncio.sleep(POLL_S)


async def is_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await client.get("/ready")).status_code != httpx.codes.OK:
            await asyncio.sleep(POLL_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("part", PARTS)
async def test_streams_go_on(server: Server, part: str, number: signal.Signals) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
        undisturbed = await streams(client, asyncio.Event())
        seen: dict[str, list[int]] = {path: [] for path in ("/health", "/v1/models", "/ready")}
        polls = [asyncio.create_task(poll(client, path, seen[path])) for path in seen]
        begun = asyncio.Event()
        running = asyncio.create_task(streams(client, begun))
        await begun.wait()
        (victim,) = server.pids(part)
        os.kill(victim, number)
        since = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert await running == undisturbed
            await is_ready(client)
            print(f"\n{part}, {number.name}: all well after {time.monotonic() - since:.1f} s")
        finally:
            if part == "ServeController" and number is signal.SIGSTOP:
                os.kill(victim, signal.SIGCONT)  # nobody watches it but Ray, which cannot tell
            for one in polls:
                one.cancel()
        assert set(seen["/health"]) == set(seen["/v1/models"]) == {httpx.codes.OK}
        assert set(seen["/ready"]) <= {httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE}
        assert await streams(client, asyncio.Event()) == undisturbed
    await asyncio.sleep(2.0)
    assert not any(server.gauges().values())
