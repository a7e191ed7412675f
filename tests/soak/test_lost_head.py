"""A cluster as KubeRay makes it, whose GCS dies: streams go on, and a new one heals the cluster.

The GCS dies with the head's pod; alone, whereupon `ray start --block`, and so the container, ends;
because Redis does; or alone, and is started again beside all else of the head. What dies
afterwards is replaced, and so is an LLM that dies while there is no head.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from dashboard import PATIENCE_S, wait_until
from kuberay import GCS, IS_POSSIBLE, KubeRay, kuberay
from streams import NUM_STREAMS, Streams, stream

from cluster import ray_api
from deploy.environment import prepare_environment

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="no redis-server")

PARTS = ("Ingress", "RequestManager", "LLMRank", "DraftModel")

Step = Callable[[KubeRay], None]


def kill_gcs(cluster: KubeRay) -> None:
    """As in a container: what else the head runs ends with it."""
    cluster.kill(GCS)
    cluster.end_head()


def kill_redis(cluster: KubeRay) -> None:
    """The GCS cannot do without, and ends."""
    cluster.kill("redis-server")
    cluster.end_head()


def start_redis_and_head(cluster: KubeRay) -> None:
    cluster.start_redis()
    cluster.start_head()


def nothing(_cluster: KubeRay) -> None:
    """It is back already."""


@pytest.fixture
def cluster(smollm2_path: Path) -> Iterator[KubeRay]:
    prepare_environment()
    ray_api.prepare_environment()
    with kuberay() as made:
        yield made


@pytest.fixture
async def client(cluster: KubeRay) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=cluster.url,
        headers={"Authorization": f"Bearer {cluster.key}"},
        timeout=PATIENCE_S,
        trust_env=False,
    ) as made:
        yield made


async def texts(client: httpx.AsyncClient) -> list[str]:
    """Of all streams, one after the other."""
    return [(await stream(client, number, asyncio.Event()))[0] for number in range(NUM_STREAMS)]


async def drafted(client: httpx.AsyncClient) -> float:
    """Verified drafts of the draft model; none while there is no manager."""
    lines = (await client.get("/metrics")).text.splitlines()
    prefix = 'treeserve_draft_tokens_total{drafter="ssm"'
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(prefix))


async def is_answered(client: httpx.AsyncClient) -> bool:
    body = {"prompt": "Hello", "max_tokens": 1}
    try:
        return (await client.post("/v1/completions", json=body)).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False  # there is no ingress


async def replaced(cluster: KubeRay, client: httpx.AsyncClient, title: str) -> None:
    """Kill a part; another comes and works."""
    victim = cluster.kill(title)
    since = time.monotonic()
    await asyncio.to_thread(wait_until, lambda: cluster.processes(title) not in ([], [victim]))
    async with asyncio.timeout(PATIENCE_S):
        while not await is_answered(client):
            await asyncio.sleep(0.2)
        print(f"{title}: another one, and an answer, after {time.monotonic() - since:.1f} s")
        before = await drafted(client)
        while await drafted(client) <= before:
            await stream(client, 0, asyncio.Event())


@pytest.mark.parametrize(
    ("is_watched", "lose", "heal"),
    [
        pytest.param(True, KubeRay.kill_head, KubeRay.start_head, id="head"),
        pytest.param(True, kill_gcs, KubeRay.start_head, id="gcs"),
        pytest.param(True, kill_redis, start_redis_and_head, id="redis"),
        pytest.param(False, KubeRay.restart_gcs, nothing, id="gcs-alone"),
    ],
)
async def test_streams_go_on_and_the_cluster_heals(
    cluster: KubeRay, client: httpx.AsyncClient, is_watched: bool, lose: Step, heal: Step
) -> None:
    await asyncio.to_thread(lambda: cluster.start(is_watched=is_watched))
    undisturbed = await texts(client)
    parts = [cluster.processes(title) for title in PARTS]
    streams = Streams(client)
    await streams.begin()
    await asyncio.to_thread(lose, cluster)
    given, pause_s = await streams.end()
    assert given == undisturbed
    print(f"\nthe longest pause between two pieces of a stream: {pause_s:.1f} s")
    assert await texts(client) == undisturbed  # also what comes while there is no head
    assert (await client.get("/ready")).status_code == httpx.codes.OK

    since = time.monotonic()
    await asyncio.to_thread(heal, cluster)
    await asyncio.to_thread(wait_until, lambda: cluster.dashboard.status() == "RUNNING")
    print(f"RUNNING again {time.monotonic() - since:.1f} s after the next start")
    assert await texts(client) == undisturbed
    assert parts == [cluster.processes(title) for title in PARTS]
    for title in reversed(PARTS):
        await replaced(cluster, client, title)
    assert await texts(client) == undisturbed


async def test_an_llm_that_dies_without_a_head(cluster: KubeRay, client: httpx.AsyncClient) -> None:
    await asyncio.to_thread(cluster.start)
    undisturbed = await texts(client)
    streams = Streams(client)
    await streams.begin()
    await asyncio.to_thread(cluster.kill_head)
    await asyncio.to_thread(cluster.kill, "LLMRank")
    await asyncio.sleep(5.0)
    await asyncio.to_thread(cluster.start_head)
    given, pause_s = await streams.end()
    assert given == undisturbed
    print(f"\nthe longest pause between two pieces of a stream: {pause_s:.1f} s")
    assert await texts(client) == undisturbed
