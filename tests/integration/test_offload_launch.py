"""A manager whose LLM streams its weights, launched on the cluster beside the server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from conftest import Server, wait_until
from launching import collect, launched, requests_for
from test_split_launch import NUM_TOKENS, answer_of

from actors.llm.offload.swap_folder import claim_swap_folder
from actors.request_manager.generation import (
    SpeculationOptions,
)
from cluster.config import parse_config
from tests.processes import descendants

pytestmark = [pytest.mark.integration, pytest.mark.model]

CONFIG = """
    model: {path: smollm2-135m-instruct, dtype: float32}
    llm: {offload: cpu, num_threads: 1}
    scheduler: {kv_memory_bytes: 67108864}
"""


async def test_it_says_what_weights_that_stay_say_and_outlives_its_rank(server: Server) -> None:
    ways = [{"temperature": 0}, {"temperature": 0.8, "seed": 3}]
    wanted = [await asyncio.to_thread(answer_of, server, **way) for way in ways]
    others = set(server.rank_pids())
    async with launched(parse_config(CONFIG)) as running:
        prompts = [prompt for prompt, _ in wanted]
        asked = requests_for(ways, prompts, NUM_TOKENS)
        plain = replace(asked[0], request_id="plain", speculation=SpeculationOptions(enabled=False))
        given = await asyncio.gather(*(collect(running, request) for request in (*asked, plain)))
        assert given == [tokens for _, tokens in (*wanted, wanted[0])]
        (own,) = {process.pid for process in descendants("LLMRank")} - others
        assert await collect(running, asked[1], kill=[own]) == wanted[1][1]
        figures = dict(
            line.rsplit(" ", 1)
            for line in running.metrics.text().splitlines()
            if not line.startswith("#")
        )
        label = '{model_name="smollm2-135m-instruct"}'
        streamed = float(figures[f"treeserve_offload_bytes_total{label}"])
        steps = float(figures[f"treeserve_llm_steps_total{label}"])
        # Matrices alone are streamed, all of them in every step.
        assert 0.9 < streamed / (steps * 4 * running.description.num_parameters) <= 1.0


@pytest.mark.usefixtures("server")
def test_a_folder_of_streamed_weights_goes_with_a_rank_that_ray_kills(tmp_path: Path) -> None:
    """Ray kills a worker's children with it."""

    @ray.remote(num_cpus=0)
    class Holder:
        def claim(self) -> str:
            return str(claim_swap_folder(tmp_path, 1))

    holder = Holder.remote()
    folder = Path(ray.get(holder.claim.remote()))
    assert folder.is_dir()
    ray.kill(holder)
    wait_until(lambda: not folder.exists())
