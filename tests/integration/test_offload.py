"""An LLM whose weights are streamed says what it says with weights that stay."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from actors.errors import ConfigError
from actors.llm.config import LLMConfig
from actors.llm.offload.async_io import load_async_io
from actors.llm.rank import RankOptions, load_rank
from actors.messages import StepReply
from actors.request_manager.engine import Engine
from actors.request_manager.generation import SpeculationOptions
from actors.sampling import SamplingParams
from cluster.tokenizer import load_vocabulary
from tests.integration.conftest import wait_until
from tests.integration.split_ranks import SplitRanks, client_of
from tests.unit.llm.tiny_models import tiny_model
from tests.unit.near_rank import PROMPTS, NearRank, answers, ask, engine_over
from tests.unit.request_manager.house import Watcher

pytestmark = pytest.mark.integration

OFF = SpeculationOptions(enabled=False)
WAYS = [SamplingParams(temperature=0.0), SamplingParams(temperature=0.8, seed=3)]
REPETITIVE = "one two three four one two three four one two three"


def why_no_files() -> str:
    """Why weights cannot be read from files here; empty if they can."""
    try:
        load_async_io()
    except ConfigError as error:
        return str(error)
    return ""


def options(folder: Path, dtype: str, offload: str = "none", files: Path | None = None):
    llm = LLMConfig(num_threads=1, offload=offload, offload_dir=files and str(files))
    return RankOptions(folder, "m", dtype, kv_block_tokens=4, kv_memory_bytes=1 << 25, llm=llm)


async def texts(
    engine: Engine, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[Sequence[int]]:
    """Greedy and sampled, with speculation and without."""
    requests = [ask(prompt, num_tokens, sampling=way) for prompt in prompts for way in WAYS]
    requests += [replace(request, speculation=OFF) for request in requests]
    return [answer.token_ids for answer in await answers(engine, requests)]


async def texts_that_stay(
    asked: RankOptions, prompts: Sequence[Sequence[int]], num_tokens: int, **more
) -> list[Sequence[int]]:
    """With weights that stay."""
    async with engine_over(NearRank(load_rank(asked)), Watcher(), **more) as engine:
        return await texts(engine, prompts, num_tokens)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "opt", "qwen2"])
@pytest.mark.parametrize("stages", [1, 2])
async def test_streamed_models_of_every_kind_say_the_same(tmp_path, family, stages):
    tiny_model(family).save_pretrained(tmp_path)
    wanted = await texts_that_stay(options(tmp_path, "float32"), PROMPTS, 12)
    streamed: Counter[int] = Counter()

    def count(rank: int, reply: StepReply) -> None:
        streamed[rank] += reply.streamed_bytes

    ranks = SplitRanks(options(tmp_path, "float32", "cpu"), 1, stages)
    async with (
        client_of(ranks, on_reply=count) as client,
        engine_over(client, Watcher(), num_groups=stages) as engine,
    ):
        assert await texts(engine, PROMPTS, 12) == wanted
    assert len(+streamed) == stages


@pytest.fixture(scope="module")
def prompts(smollm2_path) -> list[list[int]]:
    from cluster.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(smollm2_path).tokenizer
    return [tokenizer(text)["input_ids"] for text in (REPETITIVE, "Once upon a time,")]


@pytest.fixture(scope="module")
def whole(smollm2_path, prompts) -> list[Sequence[int]]:
    """What the embedded model says with weights that stay."""
    more = {"vocabulary": load_vocabulary(smollm2_path)}
    asked = options(smollm2_path, "float32")
    return asyncio.run(texts_that_stay(asked, prompts, 16, **more))


@pytest.mark.model
@pytest.mark.parametrize("offload", ["cpu", "nvme"])
async def test_the_embedded_model_says_the_same_and_outlives_its_rank(
    smollm2_path, prompts, whole, offload, tmp_path
):
    files = tmp_path if offload == "nvme" else None
    if files and (reason := why_no_files()):
        pytest.skip(reason)
    ranks = SplitRanks(options(smollm2_path, "float32", offload, files), 1, 1)
    watcher = Watcher()

    def strike() -> None:
        if len(watcher.steps) == 6:
            os.kill(ranks.processes[0].pid, signal.SIGKILL)

    watcher.after_step = strike
    vocabulary = load_vocabulary(smollm2_path)
    async with (
        client_of(ranks) as client,
        engine_over(client, watcher, vocabulary=vocabulary) as engine,
    ):
        assert await texts(engine, prompts, 16) == whole
        assert ranks.num_starts == 2
        assert sum(sum(step.accepted.values()) for step in watcher.steps) > 0
        if files:
            wait_until(lambda: len(list(tmp_path.glob("rank-*"))) == 1)
            assert sum(file.stat().st_size for file in tmp_path.rglob("*.swp")) > 300 << 20
    wait_until(lambda: not list(tmp_path.glob("rank-*")))
