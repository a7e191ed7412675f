"""One Ray cluster with the application on it, for every test that talks to a real server."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "configs" / "smollm2-float32.yaml"
PATIENCE_S = 120.0
"""Far longer than anything here takes; only a hang runs into it."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition never held")
        time.sleep(0.1)


@dataclass(frozen=True)
class Server:
    """A running application."""

    url: str
    model: str

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)

    def rank_pids(self) -> list[int]:
        """Process ids of the LLM's ranks."""
        return _descendants("ActorHost")

    def manager_pids(self) -> list[int]:
        """Process ids of the request managers."""
        return _descendants("RequestManager")

    def ingress_pids(self) -> list[int]:
        """Process ids of the ingresses."""
        return _descendants("Ingress")


def _descendants(title: str) -> list[int]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if title in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


@pytest.fixture(scope="session")
def server(smollm2_path: Path) -> Iterator[Server]:
    """The embedded model in float32, served on a port of its own."""
    from cluster import ray_api
    from cluster.config import load_config, with_address
    from cluster.placement import plan_placement
    from deploy.environment import prepare_environment

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config = with_address(load_config(CONFIG), None, free_port())
    prepare_environment()
    ray_api.prepare_environment()
    try:
        ray_api.start_cluster(plan_placement(config).num_cpus)
        from deploy import app

        app.start_serving(config)
        yield Server(f"http://127.0.0.1:{config.api.port}", config.model.name)
    finally:
        ray_api.stop_cluster()
