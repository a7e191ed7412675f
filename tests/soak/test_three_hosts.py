"""An LLM over several hosts: a head with the manager, and two hosts for two stages of three ranks.

The text is that of one rank on one host. A host that is cut off in mid-stream costs a pause, for
the other one holds both stages; without that one too, clients are told what is missing; and when a
host joins, the LLM is back. Needs root, for the hosts are network namespaces.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest import ready_configuration, serving
from dashboard import Dashboard, wait_until
from network import IS_POSSIBLE, Host, several_hosts
from streams import NUM_STREAMS, Streams, stream, wish

from cluster import ray_api
from deploy.environment import prepare_environment

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="hosts are made by root, with iproute2")

RAY = str(Path(sys.executable).with_name("ray"))
PORT, GCS, DASHBOARD = 8000, 6379, 8265
STAGES, SHARDS = 2, 3
PATIENCE_S = 180.0
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""When Ray takes a node for dead; its own choice is half a minute or more."""


class Cluster:
    """Ray's nodes, one on each host."""

    def __init__(self, hosts: list[Host], folder: Path) -> None:
        self.front, *self.backs = hosts
        self._folder = folder
        token = secrets.token_hex(32)
        self._environment = HEALTH | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # its word for several nodes
            "OMP_NUM_THREADS": "1",
        }
        self.dashboard = Dashboard(f"{self.front.address}:{DASHBOARD}", token)
        self.url = f"http://{self.front.address}:{PORT}"

    def start(self) -> None:
        listen = ("--dashboard-host", self.front.address, "--dashboard-port", str(DASHBOARD))
        head = ("--head", "--port", str(GCS), *listen, "--resources", '{"front": 1}')
        self._ray(self.front, "--num-cpus", "1", *head)
        wait_until(self.dashboard.answers)
        for host in self.backs:
            self.join(host)
        wait_until(lambda: self.dashboard.num_nodes() == 1 + len(self.backs))

    def join(self, host: Host) -> None:
        """With room for all stages and the draft model."""
        head = ("--address", f"{self.front.address}:{GCS}")
        self._ray(host, "--num-cpus", str(STAGES * SHARDS + 1), *head)

    def num_ranks(self) -> list[int]:
        """On each host but the head."""
        return [len(host.processes("LLMRank")) for host in self.backs]

    def _ray(self, host: Host, *arguments: str) -> None:
        folder = self._folder / secrets.token_hex(2)  # a host's files are its own
        common = ("--block", "--object-store-memory", "100000000", "--temp-dir", str(folder))
        command = (RAY, "start", *arguments, *common, "--node-ip-address", host.address)
        host.run(command, self._environment, self._folder / f"{host.name}.log")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    prepare_environment()
    ray_api.prepare_environment()
    folder = Path("/tmp") / f"treeserve-{secrets.token_hex(4)}"  # paths of sockets are short
    folder.mkdir()
    try:
        with several_hosts(1 + STAGES) as hosts:
            cluster = Cluster(hosts, folder)
            cluster.start()
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def wanted(smollm2_path: Path, tmp_path: Path) -> list[str]:
    """The texts of one rank on one host, without speculation."""
    config = ready_configuration("smollm2-float32.yaml")
    config["llm"] = {"num_threads": 1}
    off = {"speculation": {"enabled": False}}
    with serving(config, tmp_path) as server, httpx.Client(base_url=server.url) as client:
        texts = []
        for number in range(NUM_STREAMS):
            body = wish(number) | off | {"stream": False}
            answer = client.post("/v1/completions", json=body, timeout=PATIENCE_S).json()
            texts.append(answer["choices"][0]["text"])
        return texts


async def texts(client: httpx.AsyncClient) -> list[str]:
    return [(await stream(client, number, asyncio.Event()))[0] for number in range(NUM_STREAMS)]


async def until(client: httpx.AsyncClient, status: int) -> httpx.Response:
    """Ask for a token until the answer has such a status; returns it."""
    body = {"prompt": "Hello", "max_tokens": 1}
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await client.post("/v1/completions", json=body)).status_code != status:
            await asyncio.sleep(0.5)
    return answer


async def every_process_has_metrics(client: httpx.AsyncClient) -> None:
    """At addresses that can be reached from outside."""
    targets = (await client.get("/metrics/targets")).json()
    addresses = [address for target in targets for address in target["targets"]]
    assert len(addresses) == STAGES * SHARDS + 3
    for address in addresses:
        assert (await client.get(f"http://{address}/metrics")).status_code == httpx.codes.OK


async def test_hosts_that_are_cut_off(wanted: list[str], cluster: Cluster) -> None:
    config = ready_configuration("smollm2-float32.yaml") | {
        "llm": {
            "tensor_parallel": SHARDS,
            "pipeline_parallel": STAGES,
            "device": "cpu",
            "num_threads": 1,
            "step_timeout_s": 10,
        },
        "scheduler": {"kv_memory_bytes": 1 << 27},
        "api": {"host": cluster.front.address, "port": PORT},
        "metrics": {"host": "0.0.0.0"},
    }
    cluster.dashboard.put(config, {"num_cpus": 0, "resources": {"front": 0.1}})
    assert cluster.num_ranks() == [SHARDS, SHARDS]
    async with httpx.AsyncClient(
        base_url=cluster.url, timeout=PATIENCE_S, trust_env=False
    ) as client:
        assert await texts(client) == wanted
        await every_process_has_metrics(client)
        first, second = cluster.backs
        streams = Streams(client)
        await streams.begin()
        first.cut_off()
        given, pause_s = await streams.end()
        assert given == wanted
        assert len(second.processes("LLMRank")) == STAGES * SHARDS
        print(f"\none host cut off: the longest pause {pause_s:.1f} s")

        second.kill()
        since = time.monotonic()
        answer = await until(client, httpx.codes.SERVICE_UNAVAILABLE)
        assert "LLM stage 0, 3 ranks needs CPU 3 on one node" in answer.text, answer.text
        told_s = time.monotonic() - since
        print(f"both gone: {answer.json()['error']['message']!r} after {told_s:.1f} s")

        cluster.join(second)
        since = time.monotonic()
        await until(client, httpx.codes.OK)
        print(f"one has joined: back after {time.monotonic() - since:.1f} s")
        assert await texts(client) == wanted
