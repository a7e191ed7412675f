"""A draft model that is killed again and again under load: no text changes, nothing grows; and what
a kill every few seconds costs, beside plain decoding and beside draft models that live."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Server, ready_configuration, serving

NUM_KILLS = int(os.environ.get("SOAK_KILLS", "20"))
KILLING_S = float(os.environ.get("SOAK_S", "60"))
CALM_S = KILLING_S / 4
"""Of plain decoding, and of draft models that live, before the kills and after them."""
KILL_PERIOD_S = 5.0
NUM_CLIENTS, NUM_TIMED_CLIENTS = 4, 2
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


@pytest.fixture
def server_of_two(smollm2_path: Path, tmp_path: Path) -> Iterator[Server]:
    """The same as it comes, but with two replicas of its draft model."""
    content = ready_configuration("smollm2.yaml")
    content["ssms"][0]["replicas"] = 2
    with serving(content, tmp_path) as running:
        yield running


def wish(number: int) -> dict[str, Any]:
    """Each prompt greedy, then with a seed."""
    sampled = {"temperature": 1.0, "seed": number} if number % 2 else {"temperature": 0.0}
    prompt = PROMPTS[number // 2 % len(PROMPTS)]
    return {"prompt": prompt, "max_tokens": 48, "ignore_eos": True} | sampled


NOTHING_ELSE: Mapping[str, Any] = {}
PLAIN = {"speculation": {"enabled": False}}


async def answer(
    client: httpx.AsyncClient, number: int, fields: Mapping[str, Any] = NOTHING_ELSE
) -> str:
    reply = await client.post("/v1/completions", json={**wish(number), **fields})
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


async def test_killed_every_few_seconds(server_of_two: Server) -> None:
    server = server_of_two
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
        expected = [await answer(client, number, PLAIN) for number in range(2 * len(PROMPTS))]
        rates: dict[str, list[float]] = {"plain": [], "full": []}
        for name, fields in (("plain", PLAIN), ("full", NOTHING_ELSE)):
            rates[name].append(await tokens_per_s(server, client, expected, CALM_S, fields))
        killing = asyncio.create_task(kill_for(server, KILLING_S))
        killed = await tokens_per_s(server, client, expected, KILLING_S)
        num_kills = await killing
        await all_up(server)
        for name, fields in (("full", NOTHING_ELSE), ("plain", PLAIN)):
            rates[name].append(await tokens_per_s(server, client, expected, CALM_S, fields))
    means = {name: round(sum(of_name) / 2, 1) for name, of_name in rates.items()}
    print(f"\n{num_kills} kills in {KILLING_S:g} s: {killed:.1f} tokens/s; without: {means}")
    assert num_kills > KILLING_S / KILL_PERIOD_S / 4
    assert server.metric('treeserve_requests_total{finish_reason="error"') == 0
    assert not any(server.gauges().values())


async def tokens_per_s(
    server: Server,
    client: httpx.AsyncClient,
    expected: list[str],
    duration_s: float,
    fields: Mapping[str, Any] = NOTHING_ELSE,
) -> float:
    """What the LLM commits while clients ask for so long; every answer is the right one."""
    is_over = asyncio.Event()
    asking = (ask(client, expected, is_over, first, fields) for first in range(NUM_TIMED_CLIENTS))
    load = [asyncio.create_task(one) for one in asking]
    before, since_s = await asyncio.to_thread(committed, server), time.monotonic()
    await asyncio.sleep(duration_s)
    after, until_s = await asyncio.to_thread(committed, server), time.monotonic()
    is_over.set()
    assert sum(await asyncio.gather(*load)) > 0
    return (after - before) / (until_s - since_s)


def committed(server: Server) -> float:
    return server.metric("treeserve_committed_tokens_total{")


async def all_up(server: Server) -> None:
    """Waits for the LLM and both replicas."""
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(server.metric, "treeserve_part_up{") < 3:
            await asyncio.sleep(0.2)


async def kill_for(server: Server, duration_s: float) -> int:
    """Kill the draft model's oldest process again and again, if there is one; returns how often."""
    end_s = time.monotonic() + duration_s
    num_kills = 0
    while time.monotonic() < end_s:
        pids = await asyncio.to_thread(server.pids, "DraftModel")
        if pids:
            os.kill(pids[0], signal.SIGKILL)
            num_kills += 1
        await asyncio.sleep(KILL_PERIOD_S)
    return num_kills


async def ask(
    client: httpx.AsyncClient,
    expected: list[str],
    is_over: asyncio.Event,
    first: int,
    fields: Mapping[str, Any] = NOTHING_ELSE,
) -> int:
    """Requests one after another, each with its undisturbed answer; returns how many."""
    number = first
    while not is_over.is_set():
        place = number % len(expected)
        assert await answer(client, place, fields) == expected[place]
        number += NUM_CLIENTS + 1
    return (number - first) // (NUM_CLIENTS + 1)
