"""What groups in flight bring: three stages with three groups of requests against one.

With stages that only sleep, for a time that grows with the rows, and with the embedded model.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from actors.llm.actor import LLMActor
from actors.llm.config import LLMConfig
from actors.llm.rank import RankOptions
from actors.messages import LLMDescription, RowResult, StepMessage, StepReply
from actors.request_manager.clients import LLMClient
from actors.request_manager.generation import SpeculationOptions
from actors.request_manager.ports import LLM
from tests.integration.split_ranks import SplitRanks, client_of
from tests.unit.near_rank import answers, ask, engine_over
from tests.unit.request_manager.house import Watcher

NUM_STAGES = 3
FEW, MANY = 6, 48  # requests: a step of few is the reading of weights, one of many is arithmetic
NUM_TOKENS = 24
SECONDS_PER_ROW = 0.02
OFF = SpeculationOptions(enabled=False)


class SleepingStage:
    """Waits for the stage before, sleeps, and lets the next one go on."""

    def __init__(self, before: SleepingStage | None) -> None:
        self._before = before
        self._done = threading.Condition()
        self._num_done = 0

    def describe(self) -> LLMDescription:
        return LLMDescription("sleep", 61, 256, 64, 4, 0, "", "float32", "cpu", "none", True)

    def step(self, message: StepMessage) -> StepReply:
        started_at, started = time.time(), time.perf_counter()
        if self._before is not None:
            self._before.wait_for(message.step_id)
        waited_s = time.perf_counter() - started
        time.sleep(SECONDS_PER_ROW * message.num_tokens)
        with self._done:
            self._num_done = message.step_id + 1
            self._done.notify_all()
        return StepReply(
            message.epoch,
            message.step_id,
            tuple(
                RowResult(row.request_id, row.tree.token_ids[row.first_output :])
                for row in message.rows
                if row.num_outputs
            ),
            forward_s=time.perf_counter() - started,
            started_at=started_at,
            waited_s=waited_s,
        )

    def wait_for(self, step_id: int) -> None:
        with self._done:
            self._done.wait_for(lambda: self._num_done > step_id)


@contextlib.asynccontextmanager
async def sleeping_stages() -> AsyncIterator[LLM]:
    stages: list[SleepingStage] = []
    for _ in range(NUM_STAGES):
        stages.append(SleepingStage(stages[-1] if stages else None))
    servers = [LLMActor(lambda stage=stage: stage) for stage in stages]
    addresses = [server.start() for server in servers]

    async def respawn() -> Sequence[str]:
        return addresses

    client = LLMClient(addresses, respawn, 60.0)
    try:
        yield client
    finally:
        await client.close()
        for server in servers:
            await asyncio.to_thread(server.stop, 0.0)


async def tokens_per_s(llm: LLM, num_requests: int, num_groups: int) -> float:
    prompts = [[5, token] for token in range(num_requests)]
    requests = [replace(ask(prompt, NUM_TOKENS), speculation=OFF) for prompt in prompts]
    async with engine_over(llm, Watcher(), num_groups=num_groups) as engine:
        since = time.perf_counter()
        given = await answers(engine, requests)
        seconds = time.perf_counter() - since
    assert [len(answer.token_ids) for answer in given] == [NUM_TOKENS] * num_requests
    return num_requests * NUM_TOKENS / seconds


async def test_stages_that_sleep_are_never_idle() -> None:
    rates = {}
    for num_groups in (1, NUM_STAGES):
        async with sleeping_stages() as llm:
            rates[num_groups] = await tokens_per_s(llm, FEW, num_groups)
    ratio = rates[NUM_STAGES] / rates[1]
    print(f"\nstages that sleep: {rates} tokens/s by groups, ratio {ratio:.2f}")
    assert ratio > 2.5


@pytest.mark.parametrize("num_requests", [FEW, MANY])
async def test_stages_of_the_embedded_model(smollm2_path: Path, num_requests: int) -> None:
    options = RankOptions(
        smollm2_path,
        "smollm2",
        "float32",
        kv_block_tokens=4,
        kv_memory_bytes=1 << 26,
        llm=LLMConfig(num_threads=1),
    )
    rates = {}
    for num_groups in (1, NUM_STAGES):
        async with client_of(SplitRanks(options, 1, NUM_STAGES)) as llm:
            rates[num_groups] = await tokens_per_s(llm, num_requests, num_groups)
    ratio = rates[NUM_STAGES] / rates[1]
    print(f"\nthree stages, {num_requests} requests: {rates} tokens/s by groups, {ratio:.2f} times")
