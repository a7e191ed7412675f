"""Other draft models take over under running requests: no text changes, and a bad one changes
nothing. Once in a manager of our own, once in the application."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from conftest import Server, wait_until
from launching import collect, greedy_and_sampled, launched

from actors.errors import ConfigError, ModelError
from actors.request_manager.generation import (
    GenerationRequest,
    SpeculationOptions,
)
from actors.ssm.config import SSMConfig
from cluster.config import Config, parse_config
from cluster.launch import Launched
from cluster.metrics_server import Target
from tests.processes import descendants

pytestmark = [pytest.mark.integration, pytest.mark.model]

PROMPTS = [[504, 1820, 314, 260, 6502, 282], [1, 4093, 198, 3725, 506]]
NUM_TOKENS = 48
OFF = SpeculationOptions(enabled=False)
ACCEPTED = 'treeserve_accepted_tokens_total{drafter="ssm"'
FAILED = 'treeserve_drafter_calls_total{drafter="ssm",model_name="m",outcome="failed"'
TUNED = "embedded:smollm2-135m/ssm-0"
TUNED_VERSION = 4


def pool(path: str | Path) -> Config:
    return parse_config(f"""
        model: {{path: smollm2-135m-instruct, served_name: m, dtype: float32}}
        llm: {{num_threads: 1}}
        ssms: [{{path: '{path}'}}]
        speculation: {{drafters: [ssm], budget: fixed, draft_deadline_ms: 2000}}
        scheduler: {{kv_memory_bytes: 67108864}}
    """)


def requests(speculation: SpeculationOptions) -> list[GenerationRequest]:
    return greedy_and_sampled(PROMPTS, NUM_TOKENS, speculation)


async def answers(running: Launched, until: asyncio.Future[None] | None = None) -> list[list[int]]:
    """What all requests are answered, again and again until something is done; the last time."""
    while True:
        asked = requests(SpeculationOptions())
        told = list(await asyncio.gather(*(collect(running, one) for one in asked)))
        if until is None or until.done():
            return told


def value_of(text: str, prefix: str) -> float:
    return sum(float(ln.rsplit(" ", 1)[1]) for ln in text.splitlines() if ln.startswith(prefix))


def versions(targets: Iterable[Target]) -> list[float]:
    """Of the weights of each draft model, as its own process tells them."""
    ours = [target for target in targets if target.labels["part"] == "ssm"]
    metrics = [httpx.get(f"http://{target.address}/metrics").text for target in ours]
    return [value_of(text, "treeserve_ssm_weights_version{") for text in metrics]


async def test_successors_take_over_under_running_requests(
    server: Server, draft_path: Path
) -> None:
    others = {process.pid for process in descendants("DraftModel")}

    def own() -> set[int]:
        return {process.pid for process in descendants("DraftModel")} - others

    async with launched(pool(draft_path)) as running:
        plain = await asyncio.gather(*(collect(running, one) for one in requests(OFF)))
        assert await answers(running) == plain
        first, poor = own(), value_of(running.metrics.text(), ACCEPTED)
        assert versions(running.targets()) == [0]

        swapping = asyncio.ensure_future(running.swap_draft_models(pool(TUNED).ssms))
        assert await answers(running, swapping) == plain
        await swapping
        await asyncio.to_thread(wait_until, lambda: len(own()) == 1)
        second = own()
        assert second.isdisjoint(first)
        assert versions(running.targets()) == [TUNED_VERSION]
        before = value_of(text := running.metrics.text(), ACCEPTED)
        assert value_of(text, "treeserve_part_up{drafter=") == 2
        assert value_of(text, "treeserve_part_failures_total{") == 0
        assert value_of(text, FAILED) == 0
        assert await answers(running) == plain
        assert value_of(running.metrics.text(), ACCEPTED) - before > 2 * poor + NUM_TOKENS

        (victim,) = second
        asked = requests(SpeculationOptions())[0]
        assert await collect(running, asked, kill=[victim]) == plain[0]
        await asyncio.to_thread(wait_until, lambda: len(own() - {victim}) == 1)
        assert await answers(running) == plain
    wait_until(lambda: not own())


def test_the_application_takes_other_draft_models(
    server: Server, draft_path: Path, tmp_path: Path
) -> None:
    """And a request manager that dies comes back with them."""
    from deploy import running

    newer, bad = tmp_path / "newer", tmp_path / "bad"
    for folder in (newer, bad):
        shutil.copytree(draft_path, folder)
    (bad / "model.safetensors").write_bytes(b"nothing of the kind")
    config = json.loads((newer / "config.json").read_text())
    (newer / "config.json").write_text(json.dumps(config | {"weights_version": 9}))

    def ssms(path: Path) -> list[SSMConfig]:
        return [SSMConfig(path=str(path), max_nodes=3)]

    def served() -> list[float]:
        with server.client() as client:
            answer = client.get("/metrics/targets")
        listed = answer.json() if answer.status_code == httpx.codes.OK else []
        return versions(Target(one["targets"][0], one["labels"]) for one in listed)

    def text() -> str:
        body = {"prompt": "The sea", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        with server.client() as client:
            answer = client.post("/v1/completions", json=body)
        assert answer.status_code == httpx.codes.OK, answer.text
        return str(answer.json()["choices"][0]["text"])

    expected = text()
    before = server.ssm_pids()
    with pytest.raises(ModelError, match=r"^ssms\.0 \(.*bad\): .*its model\.safetensors cannot"):
        running.swap_draft_models(ssms(bad))
    with pytest.raises(ConfigError, match="2 instead of 1"):
        running.swap_draft_models([*ssms(newer), *ssms(draft_path)])
    wait_until(lambda: server.ssm_pids() == before)
    assert served() == [0]
    running.swap_draft_models(ssms(newer))
    assert (served(), text()) == ([9], expected)
    (manager,) = server.manager_pids()
    os.kill(manager, signal.SIGKILL)
    wait_until(lambda: served() == [9])
    assert text() == expected
    running.swap_draft_models(ssms(draft_path))
    assert (served(), text()) == ([0], expected)
