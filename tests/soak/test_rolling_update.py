"""The application is deployed anew under open load: no request fails, and no text changes.

Once with one manager, for which requests wait until the next one is up, and once with two, of which
one goes on while the other is replaced. Streams begin at a fixed rate all the while, on connections
that are kept and on new ones.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import ready_configuration
from deployments import PATIENCE_S, Deployed, deployed
from streams import wish

NUM_TEXTS = 6
EVERY_S = 1.0
NUM_TOKENS = 48
BEFORE_S, AFTER_S = 4.0, 6.0
SPECULATIONS: tuple[Mapping[str, Any], ...] = (
    {"drafters": ["prompt_lookup"]},
    {"drafters": ["prompt_lookup", "ngram"], "max_tree_nodes": 8, "budget": "fixed"},
)


class OpenLoad:
    """Streams that begin whether or not earlier ones have ended.

    Attributes:
        pauses_s: the longest time of each stream without a token, that before its first included.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.texts: list[tuple[int, str]] = []
        self.failures: list[str] = []
        self.pauses_s: list[float] = []

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        limits = httpx.Limits(keepalive_expiry=60.0)
        async with httpx.AsyncClient(
            base_url=self._url, timeout=PATIENCE_S, trust_env=False, limits=limits
        ) as client:
            yield client

    async def run(self, until: asyncio.Event) -> None:
        async with self.client() as kept, asyncio.TaskGroup() as group:
            number = 0
            while not until.is_set():
                group.create_task(self._ask(kept if number % 2 else None, number % NUM_TEXTS))
                number += 1
                await asyncio.sleep(EVERY_S)

    async def _ask(self, kept: httpx.AsyncClient | None, number: int) -> None:
        try:
            if kept is not None:
                await self._stream(kept, number)
            else:
                async with self.client() as fresh:
                    await self._stream(fresh, number)
        except (httpx.HTTPError, ValueError) as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    async def _stream(self, client: httpx.AsyncClient, number: int) -> None:
        text, pause_s, last_s = "", 0.0, time.monotonic()
        body = wish(number) | {"max_tokens": NUM_TOKENS}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                raise ValueError(f"{answer.status_code}: {(await answer.aread()).decode()}")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    frame = json.loads(line.removeprefix("data: "))
                    if "error" in frame:
                        raise ValueError(str(frame))
                    text += "".join(choice["text"] for choice in frame["choices"])
                    pause_s = max(pause_s, time.monotonic() - last_s)
                    last_s = time.monotonic()
        self.texts.append((number, text))
        self.pauses_s.append(pause_s)

    async def alone(self) -> dict[int, str]:
        """Each text without any load."""
        async with self.client() as client:
            for number in range(NUM_TEXTS):
                await self._stream(client, number)
        return dict(self.texts)


@pytest.fixture(scope="module")
def application(smollm2_path: Path) -> Iterator[Deployed]:
    """The embedded model in one manager; there is room for a second one."""
    content = ready_configuration("smollm2.yaml")
    content["llm"] = {"num_threads": 1}
    content |= {"ssms": [], "speculation": {}}
    with deployed(content, num_cpus=5) as running:
        yield running


@pytest.mark.parametrize("replicas", [1, 2])
async def test_an_update_under_load(application: Deployed, replicas: int) -> None:
    await asyncio.to_thread(application.deploy, llm={"num_threads": 1, "replicas": replicas})
    await asyncio.to_thread(application.wait_until_running)
    expected = await OpenLoad(application.url).alone()
    load, over = OpenLoad(application.url), asyncio.Event()
    running = asyncio.create_task(load.run(over))
    for speculation in SPECULATIONS:
        before = {title: application.pids(title) for title in ("Ingress", "RequestManager")}
        await asyncio.sleep(BEFORE_S)
        await asyncio.to_thread(application.deploy, speculation=speculation)
        await asyncio.to_thread(application.wait_until_running)
        for title, pids in before.items():
            assert pids.isdisjoint(application.pids(title)), f"{title} was not replaced"
    await asyncio.sleep(AFTER_S)
    over.set()
    await running
    print(
        f"{replicas} managers: {len(load.texts)} streams over {len(SPECULATIONS)} updates, "
        f"{len(load.failures)} failed, longest pause {max(load.pauses_s):.1f} s"
    )
    assert load.failures == []
    assert [one for one in load.texts if one[1] != expected[one[0]]] == []
