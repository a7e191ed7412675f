"""A manager whose LLM has int8 weights, launched on the cluster beside the server."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from conftest import Server
from launching import collect, launched, requests_for

from actors.request_manager.generation import SpeculationOptions
from cluster.config import parse_config
from tests.processes import descendants

pytestmark = [pytest.mark.integration, pytest.mark.model]

NUM_TOKENS = 24
CONFIG = """
    model: {path: smollm2-135m-instruct}
    llm: {quantization: int8, num_threads: 1}
    scheduler: {kv_memory_bytes: 67108864}
"""


async def test_it_says_the_same_with_and_without_drafts_and_after_its_ranks_death(
    server: Server,
) -> None:
    ways = [{"temperature": 0}, {"temperature": 0.8, "seed": 3}]
    prompts = [[504, 2365, 282, 4649, 314], [1, 4093, 198, 1, 4093, 198, 1]]
    others = set(server.rank_pids())
    async with launched(parse_config(CONFIG)) as running:
        asked = requests_for(ways, prompts, NUM_TOKENS)
        off = SpeculationOptions(enabled=False)
        plain = [
            replace(request, request_id=f"plain-{request.request_id}", speculation=off)
            for request in asked
        ]
        given = await asyncio.gather(*(collect(running, request) for request in (*asked, *plain)))
        assert given[:2] == given[2:]
        (own,) = {process.pid for process in descendants("LLMRank")} - others
        again = replace(asked[1], request_id="again")
        assert await collect(running, again, kill=[own]) == given[1]
        (held,) = (
            float(line.rsplit(" ", 1)[1])
            for line in running.metrics.text().splitlines()
            if line.startswith("treeserve_rank_weight_bytes{")
        )
    # A byte for each weight of layers and head, two for the embedding's, and the scales.
    assert held < 1.5 * running.description.num_parameters
