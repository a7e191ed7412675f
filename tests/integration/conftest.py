"""One Ray cluster with the application on it, for every test that talks to a real server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml
from collector import Collector, running_collector

from cluster.bench.server import free_port
from tests.processes import descendants

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "configs" / "smollm2-float32.yaml"
SPARE_CPUS = 3
"""For a second manager beside the server, with two ranks of its own."""
PATIENCE_S = 120.0
"""Far longer than anything here takes; only a hang runs into it."""


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
        return _descendants("LLMRank")

    def ssm_pids(self) -> list[int]:
        """Process ids of the draft models."""
        return _descendants("DraftModel")

    def manager_pids(self) -> list[int]:
        """Process ids of the request managers."""
        return _descendants("RequestManager")

    def ingress_pids(self) -> list[int]:
        """Process ids of the ingresses."""
        return _descendants("Ingress")


def _descendants(title: str) -> list[int]:
    return [process.pid for process in descendants(title)]


@pytest.fixture(scope="session")
def draft_path(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model for the embedded model that has learnt nothing."""
    import torch

    from actors.ssm.folder import identify_llm, load_matrices, save_draft
    from actors.ssm.model import DraftModel, DraftShape

    folder = tmp_path_factory.mktemp("drafts") / "untuned"
    shape = DraftShape(width=64, num_layers=1, ff_width=64)
    model = DraftModel(shape, torch.arange(1000), load_matrices(smollm2_path))
    save_draft(folder, model, identify_llm(smollm2_path), 0, "Not tuned; for tests.")
    return folder


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Gets the server's spans."""
    with running_collector() as running:
        yield running


@pytest.fixture(scope="session")
def server(smollm2_path: Path, draft_path: Path, collector: Collector) -> Iterator[Server]:
    """The embedded model in float32, served on a port of its own; the draft model is always asked,
    and almost always wrong. Requests are traced only if they ask for it."""
    from cluster import ray_api
    from cluster.config import parse_config
    from cluster.placement import plan_placement
    from deploy.environment import prepare_environment

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OTEL_BSP_SCHEDULE_DELAY", "200")  # ms until spans leave
    content = yaml.safe_load(CONFIG.read_text())
    content["api"] = {"port": free_port()}
    content["tracing"] = {"endpoint": collector.url, "sample": 0.0}
    content["ssms"] = [{"path": str(draft_path), "max_nodes": 3}]
    content["speculation"] |= {"drafters": ["ssm", "grammar", "prompt_lookup"], "budget": "fixed"}
    config = parse_config(yaml.safe_dump(content))
    prepare_environment()
    ray_api.prepare_environment()
    try:
        ray_api.start_cluster(plan_placement(config).num_cpus + SPARE_CPUS)
        from deploy import running

        running.start_serving(config)
        yield Server(f"http://127.0.0.1:{config.api.port}", config.model.name)
    finally:
        ray_api.stop_cluster()
