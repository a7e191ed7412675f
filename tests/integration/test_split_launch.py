"""A manager with an LLM of two stages, launched on the cluster beside the server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from conftest import Server, wait_until
from launching import collect, launched, requests_for

from actors.errors import PeerUnavailable
from cluster.config import Config, parse_config
from cluster.launch import launch
from tests.processes import descendants

pytestmark = [pytest.mark.integration, pytest.mark.model]

PROMPT = "Once upon a time, in a village by the sea,"
NUM_TOKENS = 24


def two_stages(more: str = "") -> Config:
    return parse_config(f"""
        model: {{path: smollm2-135m-instruct, dtype: float32}}
        llm: {{pipeline_parallel: 2, num_threads: 1{more}}}
        scheduler: {{kv_memory_bytes: 67108864}}
    """)


def answer_of(server: Server, **fields: object) -> tuple[list[int], list[int]]:
    """Token ids of prompt and output, from the server's one rank."""
    body = {"model": server.model, "prompt": PROMPT, "max_tokens": NUM_TOKENS, **fields}
    with server.client() as client:
        answer = client.post("/v1/completions", json={**body, "return_token_ids": True}).json()
    choice = answer["choices"][0]
    return choice["prompt_token_ids"], choice["token_ids"]


async def test_two_stages_say_what_one_rank_says_and_outlive_a_stage(
    server: Server, tmp_path: Path
) -> None:
    timeline = tmp_path / "trace.json"
    ways = [{"temperature": 0}, {"temperature": 0.8, "seed": 3}]
    wanted = [await asyncio.to_thread(answer_of, server, **way) for way in ways]
    others = set(server.rank_pids())
    async with launched(two_stages(f", trace_file: '{timeline}'")) as running:
        prompts = [prompt for prompt, _ in wanted]
        asked = requests_for(ways, prompts, NUM_TOKENS)
        own = [process.pid for process in descendants("LLMRank") if process.pid not in others]
        assert len(own) == 2
        given = await asyncio.gather(*(collect(running, request) for request in asked))
        assert given == [tokens for _, tokens in wanted]
        assert await collect(running, asked[1], kill=own[:1]) == wanted[1][1]
        held = [line for line in running.metrics.text().splitlines() if "rank_parameters{" in line]
        assert len(held) == 2
    wait_until(lambda: {process.pid for process in descendants("LLMRank")} == others)
    events = json.loads(timeline.read_text().rstrip().rstrip(",") + "]")
    spans = {(event["pid"], event["tid"], event["name"]) for event in events if event["ph"] == "X"}
    assert {(1, 0, "forward"), (1, 1, "forward"), (1, 1, "wait"), (1, 1, "sample")} <= spans
    assert {(0, group, "step") for group in (0, 1)} <= spans


@pytest.mark.usefixtures("server")
async def test_what_a_cluster_lacks_for_a_placement_is_told() -> None:
    with pytest.raises(PeerUnavailable, match=r"LLM stage 0, 900 ranks needs CPU 900 on one node"):
        await launch(two_stages(", tensor_parallel: 900"))
