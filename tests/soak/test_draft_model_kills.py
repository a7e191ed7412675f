"""A draft model that is killed again and again under load: no text changes, nothing grows."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Server, ready_configuration, serving

NUM_KILLS = int(os.environ.get("SOAK_KILLS", "20"))
NUM_CLIENTS = 4
MAX_GROWTH_MB = 30.0
"""Of manager and rank, from the second kill to the last."""
PATIENCE_S = 120.0
PROMPTS = (
    "The capital of France is",
    "Write a short story about a lighthouse keeper and a storm.",
    "List the numbers from one to thirty in words:",
    "def fibonacci(n):",
    "Explain in simple words why the sky is blue.",
    "A recipe for apple pie, step by step:",
    "Dear Sir or Madam, I am writing to",
    "Once upon a time there were three",
)


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded model with its own draft model, which is always asked."""
    folder = tmp_path_factory.mktemp("server")
    content = ready_configuration("smollm2.yaml")
    content["speculation"]["budget"] = "fixed"
    with serving(content, folder) as running:
        yield running


def wish(number: int) -> dict[str, Any]:
    """Each prompt greedy, then with a seed."""
    sampled = {"temperature": 1.0, "seed": number} if number % 2 else {"temperature": 0.0}
    prompt = PROMPTS[number // 2 % len(PROMPTS)]
    return {"prompt": prompt, "max_tokens": 48, "ignore_eos": True} | sampled


async def answer(client: httpx.AsyncClient, number: int) -> str:
    reply = await client.post("/v1/completions", json=wish(number))
    assert reply.status_code == httpx.codes.OK, reply.text
    return str(reply.json()["choices"][0]["text"])


async def successor(server: Server, victim: int | None) -> int:
    """The draft model's process, once it is another one than `victim`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            pids = await asyncio.to_thread(server.pids, "DraftModel")
            if pids and pids != [victim]:
                return int(pids[0])
            await asyncio.sleep(0.2)


async def drafted_since(server: Server, before: float) -> float:
    """Waits for verified drafts of the draft model; returns how many there are by then."""
    async with asyncio.timeout(PATIENCE_S):
        while (now := await asyncio.to_thread(drafted, server)) <= before:
            await asyncio.sleep(0.2)
    return now


def drafted(server: Server) -> float:
    return server.metric('treeserve_draft_tokens_total{drafter="ssm"')


async def test_killed_again_and_again(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
        expected = [await answer(client, number) for number in range(2 * len(PROMPTS))]
        assert len(set(expected)) == len(expected)
        is_over = asyncio.Event()
        load = [asyncio.create_task(ask(client, expected, is_over, i)) for i in range(NUM_CLIENTS)]
        memory = []
        victim = await successor(server, None)
        for _ in range(NUM_KILLS):
            count = await drafted_since(server, drafted(server))
            os.kill(victim, signal.SIGKILL)
            victim = await successor(server, victim)
            await drafted_since(server, count)
            memory.append(await asyncio.to_thread(server.memory_mb))
        is_over.set()
        answered = sum(await asyncio.gather(*load))
    growth = {title: memory[-1][title] - memory[1][title] for title in memory[1]}
    del growth["DraftModel"]
    print(f"\n{NUM_KILLS} kills, {answered} answers, growth in MB: {growth}")
    assert answered > NUM_KILLS
    assert max(growth.values()) < MAX_GROWTH_MB, growth
    assert not any(server.gauges().values())


async def ask(
    client: httpx.AsyncClient, expected: list[str], is_over: asyncio.Event, first: int
) -> int:
    """Requests one after another, each with its undisturbed answer; returns how many."""
    number = first
    while not is_over.is_set():
        place = number % len(expected)
        assert await answer(client, place) == expected[place]
        number += NUM_CLIENTS + 1
    return (number - first) // (NUM_CLIENTS + 1)
