"""The number of request managers follows the load: up when requests wait, down when they are gone.

A tiny model, so slow as one manager may run two requests at one time. No request fails, also none
of those whose manager is taken away, and each text is the one that a single manager gave.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from deployments import PATIENCE_S, Deployed, deployed

NUM_CLIENTS = 12
NUM_TEXTS = 4
NUM_TOKENS = 400
LOOK_S = 0.5


@pytest.fixture(scope="module")
def application(tiny_model: Path) -> Iterator[Deployed]:
    content: dict[str, Any] = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "llm": {
            "num_threads": 1,
            "replicas": {"max": 2, "wait_s": 1.0, "up_delay_s": 2.0, "down_delay_s": 8.0},
        },
        "scheduler": {"max_running_requests": 2, "kv_memory_bytes": 8_000_000},
    }
    with deployed(content, num_cpus=5) as running:
        yield running


async def text(client: httpx.AsyncClient, number: int) -> str:
    body = {
        "prompt": f"Chapter {number}. Once upon a time",
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": number,
    }
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == httpx.codes.OK, answer.text
    return str(answer.json()["choices"][0]["text"])


async def num_reporting(client: httpx.AsyncClient) -> int:
    """Managers whose metrics the ingress shows."""
    lines = (await client.get("/metrics")).raise_for_status().text.splitlines()
    return sum(line.startswith("treeserve_occupancy{") for line in lines)


async def wait_for(client: httpx.AsyncClient, number: int) -> float:
    """Seconds until there are so many managers."""
    begun_s = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while await num_reporting(client) != number:
            await asyncio.sleep(LOOK_S)
    return time.monotonic() - begun_s


async def test_managers_come_and_go_with_the_load(application: Deployed) -> None:
    texts: list[tuple[int, str]] = []
    over = asyncio.Event()
    async with httpx.AsyncClient(
        base_url=application.url, timeout=PATIENCE_S, trust_env=False
    ) as client:
        expected = {number: await text(client, number) for number in range(NUM_TEXTS)}
        assert await num_reporting(client) == 1

        async def ask(number: int) -> None:
            while not over.is_set():
                texts.append((number % NUM_TEXTS, await text(client, number % NUM_TEXTS)))

        async with asyncio.TaskGroup() as group:
            for number in range(NUM_CLIENTS):
                group.create_task(ask(number))
            up_s = await wait_for(client, 2)
            await asyncio.sleep(5)
            over.set()
        # A little goes on, so that the manager that is to go has something to hand over.
        over.clear()
        asking = asyncio.create_task(ask(0))
        down_s = await wait_for(client, 1)
        over.set()
        await asking
    print(f"{len(texts)} answers; two managers after {up_s:.0f} s, one again after {down_s:.0f} s")
    assert [one for one in texts if one[1] != expected[one[0]]] == []
    assert len(application.pids("RequestManager")) == 1
