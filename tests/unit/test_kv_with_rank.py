"""Shared KV and preemption with a real rank: text and log-probabilities are the same to the last
bit, in float32 and in bfloat16, since the rank's rows do not depend on their batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache

import pytest
import torch

from actors.llm.loading import LoadedModel, wrap
from actors.llm.rank import Rank
from actors.request_manager.config import SchedulerConfig, SpeculationConfig
from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.engine import Engine
from actors.request_manager.generation import (
    GenerationEvent,
    GenerationRequest,
    SpeculationOptions,
    StopConditions,
)
from actors.sampling import SamplingParams
from tests.unit.llm.tiny_models import VOCAB_SIZE, tiny_model
from tests.unit.near_rank import NO_EOS, NearRank
from tests.unit.request_manager.house import Watcher, collect

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=1.0, seed=11)


@cache
def loaded(dtype: torch.dtype) -> LoadedModel:
    return LoadedModel(
        wrap(tiny_model("llama", dtype)), dtype, torch.device("cpu"), 1024, 0, "none"
    )


@asynccontextmanager
async def engine_on(
    dtype: torch.dtype, *, num_blocks: int, block_tokens: int = 16, reuse: bool = True
) -> AsyncIterator[tuple[Engine, Watcher]]:
    rank, watcher = Rank(loaded(dtype), "tiny", num_blocks, block_tokens), Watcher()
    description = rank.describe()
    assert description.batch_invariant
    engine = Engine(
        NearRank(rank),
        description,
        NO_EOS,
        SpeculationConfig(budget="fixed", max_tree_nodes=12, max_depth=5, draft_deadline_ms=1e5),
        SchedulerConfig(max_batch_tokens=128, kv_block_tokens=block_tokens, kv_prefix_reuse=reuse),
        [PromptLookup()],
        watcher,
    )
    watcher.after_step = engine.audit
    await engine.start()
    try:
        yield engine, watcher
    finally:
        await engine.stop()


def ask(
    prompt: Sequence[int], sampling: SamplingParams, *, speculates: bool, max_tokens: int = 40
) -> GenerationRequest:
    return GenerationRequest(
        str((tuple(prompt), sampling)),
        tuple(prompt),
        sampling,
        StopConditions(max_tokens),
        num_logprobs=2,
        speculation=SpeculationOptions(enabled=speculates),
    )


async def answers(engine: Engine, requests: Sequence[GenerationRequest]) -> list[GenerationEvent]:
    return await asyncio.gather(*(collect(engine, request) for request in requests))


def prefix(num_tokens: int) -> list[int]:
    return [(7 * place * place + 3 * place + 1) % VOCAB_SIZE for place in range(num_tokens)]


def told(answer: GenerationEvent) -> tuple:
    return answer.token_ids, answer.logprobs


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "T=1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("speculates", [False, True], ids=["plain", "speculating"])
async def test_preemption_changes_nothing(dtype, sampling, speculates: bool) -> None:
    """Eight requests of 60 to 80 tokens; the small cache holds one and a half of them."""
    prompts = [prefix(20 + 3 * place)[place:] for place in range(8)]
    requests = [ask(prompt, sampling, speculates=speculates) for prompt in prompts]
    async with engine_on(dtype, num_blocks=200, block_tokens=4, reuse=False) as (engine, watcher):
        at_ease = await answers(engine, requests)
        assert sum(step.preemptions for step in watcher.steps) == 0
    async with engine_on(dtype, num_blocks=24, block_tokens=4) as (engine, watcher):
        squeezed = await answers(engine, requests)
        assert sum(step.preemptions for step in watcher.steps) > 5
    assert list(map(told, squeezed)) == list(map(told, at_ease))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("speculates", [False, True], ids=["plain", "speculating"])
async def test_a_shared_prefix_changes_nothing(dtype, speculates: bool) -> None:
    """600 tokens, 32 requests, every other one drawn at random."""
    requests = [
        ask([*prefix(600), place], (GREEDY, SEEDED)[place % 2], speculates=speculates, max_tokens=8)
        for place in range(32)
    ]
    told_by = {}
    for reuse in (False, True):
        async with engine_on(dtype, num_blocks=1500, reuse=reuse) as (engine, watcher):
            told_by[reuse] = await answers(engine, requests)
            num_run = sum(step.num_tokens - step.num_draft_nodes for step in watcher.steps)
        assert num_run < 600 + 32 * 48 if reuse else num_run > 32 * 600
    assert list(map(told, told_by[True])) == list(map(told, told_by[False]))
    stats = [answer.stats for answer in told_by[True]]
    assert [entry.num_cached_tokens for entry in stats if entry] == [0] + [592] * 31


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "T=1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
async def test_kv_that_moved_out_of_trees_is_what_a_prefill_computes(dtype, sampling) -> None:
    """A conversation: each turn goes on from all that was said, drafted or not."""
    said = {}
    for reuse in (False, True):
        async with engine_on(dtype, num_blocks=64, reuse=reuse) as (engine, watcher):
            tokens, told_here = prefix(30), []
            for turn in range(4):
                answer = await collect(engine, ask(tokens, sampling, speculates=reuse))
                told_here.append(told(answer))
                tokens = [*tokens, *answer.token_ids, turn, turn]
            said[reuse] = told_here
            if reuse:
                assert sum(step.reused_tokens for step in watcher.steps) > 200
                assert sum(sum(step.accepted_depths) for step in watcher.steps) > 5
    assert said[True] == said[False]
