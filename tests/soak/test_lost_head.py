"""A cluster as KubeRay makes it, whose head dies: streams go on, and a new head heals it.

Head without CPUs, a worker, Ray's control state in Redis, Ray's token, and the application put to
the dashboard, as the operator does. Needs `redis-server` (Debian's package redis-server).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from dashboard import PATIENCE_S, Dashboard, wait_until

from cluster import ray_api
from cluster.bench.server import free_port
from deploy.environment import prepare_environment

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server")

RAY = str(Path(sys.executable).with_name("ray"))
MARK = "TREESERVE_TEST_MARK"
RECONNECT_S = "600"
"""How long a worker waits for its head: KubeRay sets as much."""


class Cluster:
    """Redis, a head and a worker; every process carries a mark in its environment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = secrets.token_hex(8)
        self._token = secrets.token_hex(32)
        self.gcs, self.http, self.redis = free_port(), free_port(), free_port()
        self.dashboard = Dashboard(f"127.0.0.1:{self.http}", self._token)
        self._head: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._run("redis-server", "--port", str(self.redis), "--bind", "127.0.0.1", "--save", "")
        self.start_head()
        self._ray("--address", f"127.0.0.1:{self.gcs}", "--num-cpus", "4")

    def start_head(self) -> None:
        self._head = self._ray(
            *("--head", "--num-cpus", "0", "--port", str(self.gcs)),
            *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(self.http)),
            *("--ray-client-server-port", str(free_port())),
            RAY_REDIS_ADDRESS=f"127.0.0.1:{self.redis}",
        )
        wait_until(self.dashboard.answers)

    def kill_head(self) -> None:
        """Everything that the head's pod would hold; the worker's processes are left alone."""
        assert self._head is not None
        os.killpg(self._head.pid, signal.SIGKILL)
        self._head.wait()

    def processes(self, title: str = "") -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                marked = process.environ().get(MARK) == self._mark
                if marked and title in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def stop(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _ray(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        common = (
            *("--block", "--object-store-memory", "100000000"),
            *("--node-ip-address", "127.0.0.1"),
            *("--dashboard-agent-listen-port", str(free_port())),
            *("--temp-dir", tempfile.mkdtemp(dir=self._folder)),  # as each pod has its own
        )
        return self._run(RAY, "start", *arguments, *common, **environment)

    def _run(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        own = {
            MARK: self._mark,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # its word for several nodes
            "RAY_gcs_rpc_server_reconnect_timeout_s": RECONNECT_S,
            "OMP_NUM_THREADS": "1",
        }
        log = (self._folder / f"{Path(command[0]).name}.log").open("ab")
        with log:
            return subprocess.Popen(
                command,
                env=os.environ | own | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    prepare_environment()
    ray_api.prepare_environment()
    # Paths of sockets are short.
    folder = Path("/tmp") / f"treeserve-{secrets.token_hex(4)}"
    folder.mkdir()
    running = Cluster(folder)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


def configuration(model: Path, port: int) -> dict[str, Any]:
    return {
        "model": {"path": str(model), "dtype": "float32"},
        "llm": {"device": "cpu", "num_threads": 1},
        "scheduler": {"kv_memory_bytes": 8_000_000},
        "api": {"port": port},
    }


def ask(port: int, num_tokens: int) -> httpx.Response:
    body = {
        "prompt": "Hello",
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": 3,
    }
    url = f"http://127.0.0.1:{port}/v1/completions"
    return httpx.post(url, json=body, timeout=PATIENCE_S, trust_env=False)


def answer(port: int, num_tokens: int) -> str:
    done = ask(port, num_tokens)
    assert done.status_code == httpx.codes.OK, done.text
    return str(done.json()["choices"][0]["text"])


def test_a_head_that_dies_under_streams(cluster: Cluster, tiny_model: Path) -> None:
    port = free_port()
    cluster.dashboard.put(configuration(tiny_model, port), {"num_cpus": 0.1})
    (manager,) = cluster.processes("RequestManager")
    alone = answer(port, 1500)
    texts: list[str] = []
    asking = [threading.Thread(target=lambda: texts.append(answer(port, 1500))) for _ in range(4)]
    for thread in asking:
        thread.start()
    cluster.kill_head()
    assert answer(port, 1500) == alone  # also what comes while there is no head
    for thread in asking:
        thread.join()
    assert texts == [alone] * 4
    cluster.start_head()
    wait_until(lambda: cluster.dashboard.status() == "RUNNING")
    assert answer(port, 1500) == alone
    assert manager.is_running()
    # The new head does a head's work: what dies is replaced.
    manager.kill()
    wait_until(lambda: cluster.processes("RequestManager") not in ([], [manager]))
    wait_until(lambda: ask(port, 1).status_code == httpx.codes.OK)
    assert answer(port, 1500) == alone
