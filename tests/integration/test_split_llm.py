"""An LLM split over ranks in processes of their own says what it says whole."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from actors.llm.config import LLMConfig
from actors.llm.rank import RankOptions, load_rank
from actors.request_manager.engine import Engine
from actors.request_manager.generation import SpeculationOptions
from actors.sampling import SamplingParams
from tests.integration.split_ranks import SplitRanks, client_of
from tests.unit.llm.tiny_models import tiny_model
from tests.unit.near_rank import PROMPTS, NearRank, answers, ask, engine_over
from tests.unit.request_manager.house import Watcher

pytestmark = pytest.mark.integration

NUM_LAYERS, NUM_KV_HEADS, HEAD_DIM = 4, 3, 8
NUM_BLOCKS, BLOCK_TOKENS = 22, 4
ONE_THREAD = LLMConfig(num_threads=1)
INT8 = LLMConfig(num_threads=1, quantization="int8")
OFF = SpeculationOptions(enabled=False)
NUM_TOKENS = 24
GRIDS = [(3, 1), (2, 1), (1, 2), (1, 3), (3, 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of six heads, three of them for keys, with every bias that there is."""
    path = tmp_path_factory.mktemp("model") / "six-heads"
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2 * NUM_KV_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=256,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model.save_pretrained(path)
    return path


def options(folder: Path, shards: int = 1, stages: int = 1) -> RankOptions:
    """In float64, where no two sums tie; with so few KV blocks that requests are preempted."""
    largest = -(-NUM_LAYERS // stages) * 2 * -(-NUM_KV_HEADS // shards) * HEAD_DIM * 8
    return RankOptions(
        folder,
        "six-heads",
        dtype="float64",
        kv_block_tokens=BLOCK_TOKENS,
        kv_memory_bytes=NUM_BLOCKS * BLOCK_TOKENS * largest,
        llm=ONE_THREAD,
    )


async def texts(engine: Engine, num_tokens: int = NUM_TOKENS) -> list[Sequence[int]]:
    """Greedy and sampled, with speculation and without, while others are cancelled in mid-step."""
    sampled = SamplingParams(temperature=0.7, seed=5)
    greedy = [ask(prompt, num_tokens) for prompt in PROMPTS]
    requests = [*greedy, *(ask(prompt, num_tokens, sampling=sampled) for prompt in PROMPTS)]
    requests += [replace(request, speculation=OFF) for request in requests]
    strays = [asyncio.create_task(first_event(engine, request)) for request in greedy]
    given = await answers(engine, requests)
    await asyncio.gather(*strays)
    return [answer.token_ids for answer in given]


async def first_event(engine: Engine, request) -> None:
    async for _ in engine.generate(replace(request, request_id="stray")):
        return


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[Sequence[int]]:
    """What one rank says."""

    return asyncio.run(texts_of_one_rank(options(folder), NUM_TOKENS))


async def texts_of_one_rank(asked: RankOptions, num_tokens: int) -> list[Sequence[int]]:
    rank = NearRank(load_rank(asked))
    async with engine_over(rank, Watcher(), max_batch_tokens=16) as engine:
        return await texts(engine, num_tokens)


@torch.inference_mode()
def test_the_whole_says_what_transformers_says(folder, whole):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    for prompt, given in zip(PROMPTS, whole, strict=False):
        tokens = [*prompt, *given]
        best = model(torch.tensor([tokens])).logits[0].argmax(-1).tolist()
        assert list(given) == best[len(prompt) - 1 : -1]


@pytest.mark.parametrize(("shards", "stages"), GRIDS)
async def test_the_parts_together_say_what_the_whole_says(folder, whole, shards, stages):
    """With chunked prompts, preemption, and requests that are cancelled while a step runs."""
    watcher = Watcher()
    ranks = SplitRanks(options(folder, shards, stages), shards, stages)
    async with (
        client_of(ranks) as client,
        engine_over(client, watcher, max_batch_tokens=16, num_groups=stages) as engine,
    ):
        assert engine.description.num_kv_blocks == NUM_BLOCKS
        assert await texts(engine) == whole
    assert ranks.num_starts == 1
    assert sum(step.preemptions for step in watcher.steps) > 0
    assert sum(sum(step.accepted.values()) for step in watcher.steps) > 5


@pytest.mark.parametrize(
    ("shards", "stages", "llm"),
    [(3, 1, ONE_THREAD), (1, 2, ONE_THREAD), (3, 1, INT8), (1, 2, INT8)],
)
async def test_in_bfloat16_drafts_and_neighbours_change_nothing(folder, shards, stages, llm):
    """Nor do stages; shards add up in an order of their own, and have scales of their own."""
    asked = replace(options(folder, shards, stages), dtype="bfloat16", llm=llm)
    if not load_rank(asked).describe().batch_invariant:
        pytest.skip("rows depend on each other here, whole or split")
    async with (
        client_of(SplitRanks(asked, shards, stages)) as client,
        engine_over(client, Watcher(), max_batch_tokens=16, num_groups=stages) as engine,
    ):
        assert all(rank.batch_invariant for rank in client.descriptions)
        assert {rank.quantization for rank in client.descriptions} == {llm.quantization}
        given = await texts(engine)
    half = len(given) // 2
    assert given[:half] == given[half:]
    if shards == 1:
        assert given == await texts_of_one_rank(asked, NUM_TOKENS)


@pytest.mark.parametrize(
    "family", ["gemma2", "gemma3_text", "gpt_neox", "mixtral", "opt", "qwen2", "qwen3_moe"]
)
async def test_models_of_other_families_are_split_too(tmp_path, family):
    """Those without a fused forward pass as well; windows, biases, learnt positions, joined QKV,
    experts, weights that are named and cut otherwise in their files."""
    tiny_model(family).save_pretrained(tmp_path)
    asked = RankOptions(
        tmp_path, family, "float64", kv_block_tokens=4, kv_memory_bytes=1 << 20, llm=ONE_THREAD
    )
    wanted = await texts_of_one_rank(asked, 8)
    async with (
        client_of(SplitRanks(asked, 2, 2)) as client,
        engine_over(client, Watcher(), max_batch_tokens=16, num_groups=2) as engine,
    ):
        assert await texts(engine, 8) == wanted


@pytest.mark.parametrize(
    ("family", "shards", "stages"),
    [("mixtral", 1, 3), ("mixtral", 2, 1), ("qwen3_moe", 1, 2), ("qwen3_moe", 2, 3)],
)
async def test_experts_in_float32(tmp_path, family, shards, stages):
    """By the products that transformers chooses for them."""
    tiny_model(family, torch.float32).save_pretrained(tmp_path)
    asked = RankOptions(
        tmp_path, family, "float32", kv_block_tokens=4, kv_memory_bytes=1 << 20, llm=ONE_THREAD
    )
    wanted = await texts_of_one_rank(asked, 8)
    async with (
        client_of(SplitRanks(asked, shards, stages)) as client,
        engine_over(client, Watcher(), max_batch_tokens=16, num_groups=stages) as engine,
    ):
        assert await texts(engine, 8) == wanted


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
async def test_a_rank_that_dies_or_hangs_takes_all_down_and_the_text_goes_on(
    folder, whole, sent, victim
):
    ranks = SplitRanks(options(folder, 1, 2), 1, 2)
    watcher = Watcher()

    def strike() -> None:
        if len(watcher.steps) == 12:
            os.kill(ranks.processes[victim].pid, sent)

    watcher.after_step = strike
    async with (
        client_of(ranks, step_timeout_s=2.0) as client,
        engine_over(client, watcher, max_batch_tokens=16, num_groups=2) as engine,
    ):
        assert await texts(engine) == whole
    assert ranks.num_starts == 2
