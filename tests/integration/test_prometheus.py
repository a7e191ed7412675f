"""A real Prometheus (Debian's package) on a running server: targets, the dashboard, two alerts."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from conftest import Server, wait_until
from prometheus_client import CollectorRegistry

from actors.messages import StepReply
from actors.request_manager.ports import StepRecord
from cluster.bench.server import free_port
from cluster.metrics import Metrics
from cluster.metrics_server import MetricsServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not shutil.which("prometheus"), reason="no prometheus (Debian package prometheus)"
    ),
]

MONITORING = Path(__file__).resolve().parents[2] / "k8s" / "monitoring"
WINDOW = "10s"
"""Stands for every window of rules and dashboard, so that nobody has to wait for an hour."""
SCRAPE = "1s"
PROMPT = "The planets of the solar system, from the sun outwards, are the following: " * 2
"""Longer than a block of KV, so that there is something to reuse."""


def quick_rules() -> dict[str, Any]:
    """The rules with all of their windows and waits cut short."""
    spec = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]
    for group in spec["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[\d+[mh]\]", f"[{WINDOW}]", rule["expr"])
            if "for" in rule:
                rule["for"] = "1s"
    return dict(spec)


def dashboard() -> dict[str, str]:
    """The queries of the dashboard, by panel and letter."""
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return {
        f"{panel['title']}, {target['refId']}": target["expr"]
        .replace("$__rate_interval", WINDOW)
        .replace("$model", ".*")
        for panel in panels
        for target in panel["targets"]
    }


@dataclass(frozen=True)
class Prometheus:
    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = httpx.get(
            f"{self.url}/api/v1/query", params={"query": expression}, timeout=10, trust_env=False
        )
        body = answer.json()
        assert body["status"] == "success", body
        return list(body["data"]["result"])

    def values(self, expression: str) -> list[float]:
        """What a query gives now, but for what is no number."""
        values = [float(result["value"][1]) for result in self.query(expression)]
        return [value for value in values if not math.isnan(value)]

    def firing(self) -> set[tuple[str, str]]:
        """Names of the alerts that fire, each with its drafter."""
        return {
            (one["metric"]["alertname"], one["metric"].get("drafter", ""))
            for one in self.query('ALERTS{alertstate="firing"}')
        }

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that finds the server's processes by the server's own list of them."""
    targets = {"url": f"{server.url}/metrics/targets", "refresh_interval": SCRAPE}
    folder = tmp_path_factory.mktemp("prometheus")
    with running_prometheus(folder, {"http_sd_configs": [targets]}) as running:
        yield running


@contextmanager
def running_prometheus(folder: Path, found_by: dict[str, Any]) -> Iterator[Prometheus]:
    """One with our rules.

    Args:
        folder: for its data.
        found_by: how it finds its targets.
    """
    (folder / "rules.yaml").write_text(yaml.safe_dump(quick_rules()))
    config = {
        "global": {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "treeserve", **found_by}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    running = Prometheus(f"http://{address}")
    try:
        wait_until(running.is_up)
        yield running
    finally:
        process.terminate()
        process.wait()


def ask(server: Server, **fields: Any) -> httpx.Response:
    body = {"model": server.model, "prompt": PROMPT, "ignore_eos": True, **fields}
    with server.client() as client:
        return client.post("/v1/completions", json=body).raise_for_status()


@contextmanager
def traffic(server: Server) -> Iterator[None]:
    """One request after the other, as long as the context lasts."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            ask(server, max_tokens=24)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_every_process_is_found_and_up(prometheus: Prometheus) -> None:
    parts = {"ingress", "manager", "llm", "ssm"}
    wait_until(lambda: {one["metric"]["part"] for one in prometheus.query("up == 1")} == parts)
    assert prometheus.query("up == 0") == []


def test_names_with_a_colon_keep_it(prometheus: Prometheus) -> None:
    wait_until(lambda: bool(prometheus.query("vllm:spec_decode_num_drafts_total")))


def test_every_query_of_the_dashboard_has_an_answer(server: Server, prometheus: Prometheus) -> None:
    left = dashboard()
    assert len(left) > 20

    def all_answered() -> bool:
        for name, query in list(left.items()):
            if prometheus.values(query):
                del left[name]
        return not left

    with traffic(server):
        try:
            wait_until(all_answered)
        except TimeoutError:
            pytest.fail(f"no data: {left}")


def test_a_draft_model_whose_guesses_are_worthless_raises_an_alert(
    server: Server, prometheus: Prometheus
) -> None:
    with traffic(server):  # the server's draft model has learnt nothing
        wait_until(lambda: ("TreeServeAcceptanceCollapsed", "ssm") in prometheus.firing())


def test_a_rank_that_hangs_raises_an_alert_and_changes_no_text(
    server: Server, prometheus: Prometheus
) -> None:
    fields = {"max_tokens": 40, "temperature": 0.8, "seed": 5}
    alone = ask(server, **fields).json()["choices"][0]["text"]
    stalled = ("TreeServeStepStalled", "")
    assert stalled not in prometheus.firing()
    (rank,) = server.rank_pids()
    texts: list[str] = []

    def hang() -> None:
        texts.append(ask(server, **fields).json()["choices"][0]["text"])

    os.kill(rank, signal.SIGSTOP)
    try:
        request = threading.Thread(target=hang)
        request.start()
        wait_until(lambda: stalled in prometheus.firing())
    finally:
        os.kill(rank, signal.SIGCONT)
    request.join()
    assert texts == [alone]
    wait_until(lambda: stalled not in prometheus.firing())


def test_gauges_are_back_at_zero_after_a_mass_abort(server: Server, prometheus: Prometheus) -> None:
    gauges = (
        "treeserve_requests_running",
        "treeserve_kv_blocks_used",
        "treeserve_http_requests_inside",
    )

    def values() -> list[list[float]]:
        return [prometheus.values(gauge) for gauge in gauges]

    body = {"model": server.model, "prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True}
    with (
        server.client() as client,
        client.stream("POST", "/v1/completions", json={**body, "n": 20, "stream": True}) as answer,
    ):
        answer.raise_for_status()
        wait_until(lambda: all(map(sum, values())))
    wait_until(lambda: values() == [[0.0], [0.0], [0.0]])
    assert prometheus.values("treeserve_requests_waiting") == [0.0]


def test_the_dashboard_tells_what_an_offloaded_llm_streams(tmp_path: Path) -> None:
    """Of steps that are told of as an LLM's client tells of them."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, "offloaded")
    step_ids = count()
    panels = {name: query for name, query in dashboard().items() if name.startswith("Offload")}
    assert len(panels) == 3
    with (
        closing(MetricsServer(registry, "127.0.0.1", (0,), "127.0.0.1")) as exposed,
        running_prometheus(tmp_path, {"static_configs": [{"targets": [exposed.address]}]}) as seen,
    ):

        def tell(query: str) -> list[float]:
            step_id = next(step_ids)
            metrics.rank_replied(0, StepReply(0, step_id, streamed_bytes=6_000_000))
            metrics.step_done(streamed_step(step_id, num_committed=3))
            return seen.values(query)

        wait_until(lambda: any(tell(panels["Offload: weights streamed, A"])))
        each = "Offload: weights for each step and token, "
        wait_until(lambda: tell(panels[f"{each}A"]) == [pytest.approx(6e6)])
        wait_until(lambda: tell(panels[f"{each}B"]) == [pytest.approx(2e6)])


def streamed_step(step_id: int, num_committed: int) -> StepRecord:
    return StepRecord(1, 1, 0, num_committed, {}, {}, (), 0, 0, 0, {}, 0, 0, step_id=step_id)
