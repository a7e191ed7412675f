"""Everything at once, for as long as is wanted: no text changes, nothing grows, nothing stays.

Streams, clients that leave, wrong requests, grammars, penalties and long prompts on a KV cache that
is too small for all of them, while parts of the server are killed one after the other; in the
second half nothing is killed, so that the memory of every process can be followed. Every answer is
compared with that of an undisturbed run. SOAK_S is the length in seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from conftest import Server, ready_configuration, serving

DURATION_S = float(os.environ.get("SOAK_S", "120"))
NUM_CLIENTS = 6
KV_BYTES = 20_000_000
"""About 860 tokens: requests are preempted all the time."""
VICTIMS = ("DraftModel", "LLMRank", "RequestManager")
KILL_EVERY_S = 20.0
SAMPLE_EVERY_S = 10.0
PATIENCE_S = 180.0
MAX_GROWTH_MB = 20.0
"""Of a process over the last quarter of the run."""
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "size": {"type": "integer", "minimum": 1, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
LONG = "The lighthouse keeper counted the waves, one after another, and wrote them down. " * 25


class Wish(NamedTuple):
    """A request whose answer is always the same."""

    path: str
    body: dict[str, Any]


def text_wish(prompt: str, **fields: Any) -> Wish:
    return Wish(COMPLETIONS, {"prompt": prompt, "max_tokens": 40, "temperature": 0} | fields)


def chat_wish(prompt: str, **fields: Any) -> Wish:
    messages = [{"role": "user", "content": prompt}]
    return Wish(CHAT, {"messages": messages, "max_tokens": 60, "temperature": 0} | fields)


WISHES = (
    text_wish("The capital of France is", ignore_eos=True),
    text_wish("Once upon a time there were three", temperature=1.0, seed=3),
    text_wish("def fibonacci(n):", temperature=0.7, seed=4, top_p=0.9, top_k=50),
    text_wish("A list of animals: cat, dog,", repetition_penalty=1.3),
    text_wish("yes yes yes yes", presence_penalty=1.0, frequency_penalty=0.5),
    text_wish("One two three four five", logit_bias={"28": -100, "30": 3}),
    text_wish("Write the numbers: 1, 2, 3,", stop=["9", " 12"], include_stop_str_in_output=True),
    text_wish("Hello", min_tokens=20, min_p=0.05, temperature=0.9, seed=8),
    text_wish("The sky is", n=3, temperature=1.0, seed=9),
    text_wish("The sea is", logprobs=3, echo=True),
    text_wish("No drafts here:", speculation={"enabled": False}, ignore_eos=True),
    text_wish("Few drafts here:", speculation={"max_nodes": 2}, ignore_eos=True),
    text_wish(LONG + "The first", max_tokens=60, ignore_eos=True),
    text_wish(LONG + "The second", max_tokens=60, ignore_eos=True, priority=-1),
    text_wish(LONG + "The third", max_tokens=60, temperature=0.8, seed=1, priority=1),
    text_wish(["Good morning", "Good night"], ignore_eos=True),  # type: ignore[arg-type]
    chat_wish("Why is the sky blue?"),
    chat_wish("Tell me a joke.", temperature=1.0, seed=5, logprobs=True, top_logprobs=2),
    chat_wish("Describe a toy.", guided_json=SCHEMA, max_tokens=120),
    chat_wish("Describe a stone.", guided_json=SCHEMA, max_tokens=120, temperature=1.0, seed=6),
    chat_wish("Any JSON.", response_format={"type": "json_object"}),
    chat_wish("A date.", guided_regex="[0-9]{4}-[0-9]{2}-[0-9]{2}", temperature=1.0, seed=2),
    chat_wish("Which is best?", guided_choice=["the first", "the second", "neither"]),
)
WRONG: tuple[tuple[str, object], ...] = (
    (COMPLETIONS, {}),
    (COMPLETIONS, []),
    (COMPLETIONS, {"prompt": ""}),
    (COMPLETIONS, {"prompt": [10**9]}),
    (COMPLETIONS, {"prompt": "x", "temperature": -1}),
    (COMPLETIONS, {"prompt": "x", "logit_bias": {"AI": 5}}),
    (COMPLETIONS, {"prompt": "x", "mood": 1}),
    (COMPLETIONS, {"prompt": "x " * 9000}),
    (COMPLETIONS, {"prompt": "x", "guided_regex": "("}),
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "guided_json": {"typ": "string"}}),
)
Told = tuple[tuple[int, str, str | None], ...]
"""Index, text and reason of every choice."""


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    content = ready_configuration("smollm2.yaml")
    content["scheduler"] = {"kv_memory_bytes": KV_BYTES, "max_running_requests": 16}
    with serving(content, folder) as running:
        yield running


async def test_everything_at_once(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
        expected = {place: await told(client, wish, False) for place, wish in enumerate(WISHES)}
        load = Load(client, expected, time.monotonic() + DURATION_S)
        clients = [asyncio.create_task(load.run(seed)) for seed in range(NUM_CLIENTS)]
        num_kills = await kill_parts(server, load.ends_s - DURATION_S / 2)
        failures = await asyncio.to_thread(failed_parts, server)
        samples = await follow_memory(server, load.ends_s)
        await asyncio.gather(*clients)
    print(f"\n{DURATION_S:g} s, {num_kills} kills: {dict(load.counts)}; last: {samples[-1]}")
    check_memory(samples)
    assert failed_parts(server) == failures, "a step or an audit went wrong by itself"
    assert all(load.counts[kind] for kind in ("right", "left", "refused")), load.counts
    assert num_kills > 0
    await asyncio.sleep(2.0)
    assert not any(server.gauges().values()), server.gauges()
    assert server.metric('treeserve_requests_total{finish_reason="error"') == 0


class Load:
    """What the clients do, at random.

    Attributes:
        counts: how many answers were right, wrong requests refused, clients gone, and how often one
            came while there was no manager.
    """

    def __init__(self, client: httpx.AsyncClient, expected: dict[int, Told], ends_s: float) -> None:
        self._client = client
        self._expected = expected
        self.ends_s = ends_s
        self.counts: Counter[str] = Counter()

    async def run(self, seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < self.ends_s:
            kind = chance.choices(["right", "left", "refused"], [6, 2, 1])[0]
            try:
                if kind == "right":
                    await self._compare(chance)
                elif kind == "left":
                    await self._leave(chance)
                else:
                    await self._ask_wrongly(chance)
                self.counts[kind] += 1
            except Away:
                self.counts["away"] += 1
                await asyncio.sleep(0.5)

    async def _compare(self, chance: random.Random) -> None:
        place = chance.randrange(len(WISHES))
        found = await told(self._client, WISHES[place], stream=chance.random() < 0.6)
        assert found == self._expected[place], WISHES[place]

    async def _leave(self, chance: random.Random) -> None:
        wish = chance.choice(WISHES)
        num_lines = chance.randrange(12)
        try:
            async with asyncio.timeout(chance.choice([0.01, 0.1, PATIENCE_S])):
                body = wish.body | {"stream": True}
                async with self._client.stream("POST", wish.path, json=body) as answer:
                    require_there(answer)
                    lines = answer.aiter_lines()
                    async for _ in aislice(lines, num_lines):
                        pass
        except TimeoutError:
            pass

    async def _ask_wrongly(self, chance: random.Random) -> None:
        path, body = chance.choice(WRONG)
        answer = await self._client.post(path, json=body)
        require_there(answer)
        assert answer.status_code == httpx.codes.BAD_REQUEST, answer.text
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


class Away(Exception):
    """There is no manager at the moment; the server said so."""


def require_there(answer: httpx.Response) -> None:
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise Away


async def aislice(lines: Any, count: int) -> Any:
    for _ in range(count):
        try:
            yield await anext(lines)
        except StopAsyncIteration:
            return


async def told(client: httpx.AsyncClient, wish: Wish, stream: bool) -> Told:
    if not stream:
        answer = await client.post(wish.path, json=wish.body)
        require_there(answer)
        assert answer.status_code == httpx.codes.OK, answer.text
        return tuple(map(said, answer.json()["choices"]))
    texts: dict[int, str] = {}
    reasons: dict[int, str | None] = {}
    async with client.stream("POST", wish.path, json=wish.body | {"stream": True}) as answer:
        require_there(answer)
        assert answer.status_code == httpx.codes.OK, await answer.aread()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[len("data: ") :])
            assert "error" not in chunk, chunk
            for index, text, reason in map(said, chunk["choices"]):
                texts[index] = texts.get(index, "") + text
                reasons[index] = reason or reasons.get(index)
    return tuple((index, texts[index], reasons[index]) for index in sorted(texts))


def said(choice: dict[str, Any]) -> tuple[int, str, str | None]:
    """Of a whole answer or of a chunk, for text and for chat."""
    turn = choice.get("message") or choice.get("delta") or {}
    return choice["index"], choice.get("text") or turn.get("content") or "", choice["finish_reason"]


async def kill_parts(server: Server, until_s: float) -> int:
    """One part after the other; returns how many."""
    num_kills = 0
    for title in itertools.cycle(VICTIMS):
        if time.monotonic() + KILL_EVERY_S > until_s:
            break
        await asyncio.sleep(KILL_EVERY_S / 2)
        for pid in await asyncio.to_thread(server.pids, title):
            os.kill(pid, signal.SIGKILL)
        num_kills += 1
        await asyncio.sleep(KILL_EVERY_S / 2)
    await asyncio.sleep(max(0.0, until_s - time.monotonic()))
    await is_back(server)
    return num_kills


async def is_back(server: Server) -> None:
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(base_url=server.url) as client:
        while (await client.get("/metrics", timeout=PATIENCE_S)).status_code != httpx.codes.OK:
            await asyncio.sleep(0.5)


def failed_parts(server: Server) -> float:
    return server.metric("treeserve_part_failures_total")


Sample = dict[tuple[str, int], float]
"""Megabytes of each process, by title and process id."""


async def follow_memory(server: Server, ends_s: float) -> list[Sample]:
    samples = [await asyncio.to_thread(memory, server)]
    while time.monotonic() < ends_s:
        await asyncio.sleep(SAMPLE_EVERY_S)
        samples.append(await asyncio.to_thread(memory, server))
    return samples


def memory(server: Server) -> Sample:
    megabytes = server.memory_mb()
    return {(title, server.pids(title)[0]): round(size) for title, size in megabytes.items()}


def check_memory(samples: list[Sample]) -> None:
    before, after = samples[len(samples) // 2], samples[-1]
    growth = {process: after[process] - before[process] for process in before if process in after}
    assert growth
    assert max(growth.values()) < MAX_GROWTH_MB, growth
