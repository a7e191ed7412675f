"""A draft model over real sockets: what is sent, and that its faults cost drafts, nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess

import grpc
import pytest
from drafting import GREEDY, drafting, following, nobody, task, until
from grpc_health.v1 import health_pb2, health_pb2_grpc
from scripted_draft import PATIENCE_S, VOCAB, ScriptedDraft, process, script, serving

from actors.errors import PeerError, PeerUnavailable, ProtocolError
from actors.request_manager import ssm_client
from actors.request_manager.config import SchedulerConfig, SpeculationConfig
from actors.request_manager.engine import Engine
from actors.request_manager.generation import (
    GenerationEvent,
    GenerationRequest,
    SpeculationStats,
    StopConditions,
)
from actors.request_manager.ports import StepRecord
from actors.request_manager.scripted_llm import ScriptedLLM
from actors.request_manager.ssm_client import SSMDrafter
from actors.ssm.actor import SPECULATOR, SSMActor
from actors.vocabulary import Vocabulary
from protos import speculation_pb2 as pb
from protos import speculation_pb2_grpc as services

pytestmark = pytest.mark.integration

PROMPT = (1, 2, 3)
NUM_TOKENS = 400
"""Enough for a successor to be reached before they are all there."""


@pytest.fixture
def model() -> ScriptedDraft:
    return ScriptedDraft()


@pytest.fixture
def address(model: ScriptedDraft) -> Iterator[str]:
    with serving(model) as address:
        yield address


# ---------------------------------------------------------------- one drafter


async def test_trees_come_back_for_all_tasks(model: ScriptedDraft, address: str) -> None:
    async with drafting(address) as drafter:
        assert (await drafter.describe()).vocab_size == VOCAB
        drafts = await drafter.draft([task(1, 5, 6), task(2, 7)])
        assert drafts[1].tree.token_ids == following(5, 6)
        assert drafts[2].tree.token_ids == following(7)
        assert drafts[1].scores == pytest.approx((0.9,) * 3)
        assert drafter.weights_version == 1


async def test_only_what_is_new_is_sent(model: ScriptedDraft, address: str) -> None:
    async with drafting(address) as drafter:
        await drafter.draft([task(1, 5, 6)])
        drafts = await drafter.draft([task(1, 5, 6, 7, 8)])
    assert model.kept == [0, 2]
    assert drafts[1].tree.token_ids == following(5, 6, 7, 8)


async def test_a_forgotten_session_is_sent_again_in_the_same_round(
    model: ScriptedDraft, address: str
) -> None:
    async with drafting(address) as drafter:
        await drafter.draft([task(1, 5, 6), task(2, 9)])
        del model.sessions[1]
        drafts = await drafter.draft([task(1, 5, 6, 7), task(2, 9, 8)])
    assert model.kept == [0, 0, 2, 1, 0]
    assert drafts[1].tree.token_ids == following(5, 6, 7)
    assert drafts[2].tree.token_ids == following(9, 8)


async def test_a_request_that_is_over_is_released(model: ScriptedDraft, address: str) -> None:
    async with drafting(address) as drafter:
        await drafter.draft([task(1, 5), task(2, 5)])
        drafter.forget(1)
        drafter.forget(77)
        await until(lambda: list(model.sessions) == [2])


async def test_a_request_that_ends_while_an_answer_is_on_its_way_is_released(
    model: ScriptedDraft, address: str
) -> None:
    async with drafting(address) as drafter:
        model.hold.clear()
        asked = asyncio.create_task(drafter.draft([task(1, 5), task(2, 5)]))
        await asyncio.sleep(0.05)
        drafter.forget(1)
        model.hold.set()
        await asked
        await until(lambda: list(model.sessions) == [2])
        drafter.forget(2)
        await until(lambda: not model.sessions)


@pytest.mark.parametrize(
    ("fault", "seen"), [(ProtocolError("odd"), ProtocolError), (ZeroDivisionError("x"), PeerError)]
)
async def test_a_fault_costs_one_round(
    model: ScriptedDraft, address: str, fault: Exception, seen: type[PeerError]
) -> None:
    async with drafting(address) as drafter:
        model.fault = fault
        with pytest.raises(seen):
            await drafter.draft([task(1, 5)])
        assert (await drafter.draft([task(1, 5)]))[1].tree.token_ids == following(5)


async def test_nothing_is_left_of_streams_that_failed(model: ScriptedDraft, address: str) -> None:
    before = asyncio.all_tasks()
    async with drafting(address) as drafter:
        for _ in range(3):
            model.fault = ProtocolError("odd")
            with pytest.raises(ProtocolError):
                await drafter.draft([task(1, 5)])
        await until(lambda: asyncio.all_tasks() == before)


async def test_the_death_of_an_idle_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssm_client, "RESPAWN_BACKOFF_S", (0.0, 0.01))
    with process() as (child, address), serving(ScriptedDraft(version=2)) as successor:
        num_spawned = 0

        async def respawn() -> str:
            nonlocal num_spawned
            num_spawned += 1
            return successor

        async with drafting(address, respawn) as drafter:
            assert (await drafter.describe()).weights_version == 1
            child.kill()
            await until(lambda: num_spawned == 1 and not drafter.is_away)
            assert (await drafter.draft([task(1, 5)]))[1].tree.token_ids == following(5)
            assert drafter.weights_version == 2
    assert num_spawned == 1


async def test_while_it_is_away_there_are_no_drafts_and_no_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssm_client, "RESPAWN_BACKOFF_S", (0.0, 0.01))
    model, tries = ScriptedDraft(), 0
    with process() as (child, address), serving(model) as successor:

        async def respawn() -> str:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise PeerUnavailable("no machine yet")
            return successor

        async with drafting(address, respawn) as drafter:
            await drafter.draft([task(1, 5, 6)])
            child.kill()
            child.join()
            with pytest.raises(PeerUnavailable):
                await drafter.draft([task(1, 5, 6, 7)])
            assert await drafter.draft([task(1, 5, 6, 7)]) == {}
            with pytest.raises(PeerUnavailable, match="away"):
                await drafter.describe()
            await until(lambda: drafter._peer is not None)
            drafts = await drafter.draft([task(1, 5, 6, 7)])
    assert tries == 3
    assert model.kept == [0]
    assert drafts[1].tree.token_ids == following(5, 6, 7)


async def test_closing_ends_the_attempts_to_bring_it_back(address: str) -> None:
    before = asyncio.all_tasks()
    drafter = SSMDrafter("127.0.0.1:1", nobody, PATIENCE_S)
    with pytest.raises(PeerUnavailable):
        await drafter.draft([task(1, 5)])
    assert len(asyncio.all_tasks()) > len(before)
    await drafter.close()
    assert asyncio.all_tasks() == before


# ---------------------------------------------------------------- the server


async def test_the_server_has_health_and_refuses_malformed_requests(
    model: ScriptedDraft, address: str
) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SPECULATOR))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        malformed = pb.DraftRequest(sessions=[pb.DraftSession(session_id=1, token_ids=[1])])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(services.SpeculatorStub(channel).Drafts(iter([malformed]))))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert model.kept == []


def test_a_draft_model_that_cannot_be_loaded_says_why() -> None:
    def load() -> ScriptedDraft:
        raise ProtocolError("of another LLM")

    with pytest.raises(ProtocolError, match="of another LLM"):
        SSMActor(load)


# ---------------------------------------------------------------- under an engine


class Watcher:
    """Keeps the steps; calls back after each."""

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self.steps: list[StepRecord] = []
        self._on_step = on_step

    def request_finished(self, *args: object) -> None: ...

    def gauges(self, *args: object) -> None: ...

    def step_done(self, record: StepRecord) -> None:
        self.steps.append(record)
        self._on_step(len(self.steps))


async def answers(
    drafter: SSMDrafter, on_step: Callable[[int], None], num_requests: int = 3
) -> tuple[list[GenerationEvent], Watcher]:
    """What requests side by side generate with this drafter."""
    llm, watcher = ScriptedLLM(script), Watcher(on_step)
    speculation = SpeculationConfig(drafters=("ssm",), budget="fixed", draft_deadline_ms=2000)
    names = tuple(map(str, range(VOCAB)))
    engine = Engine(
        llm,
        await llm.describe(),
        Vocabulary(tuple(name.encode() for name in names), names, frozenset()),
        speculation,
        SchedulerConfig(max_batch_tokens=64, kv_block_tokens=4),
        [drafter],
        watcher,
    )

    async def collect(number: int) -> GenerationEvent:
        asked = GenerationRequest(
            str(number), (*PROMPT, number), GREEDY, StopConditions(NUM_TOKENS)
        )
        whole: GenerationEvent | None = None
        async for event in engine.generate(asked):
            whole = whole.merged(event) if whole else event
        assert whole is not None
        return whole

    await engine.start()
    try:
        return list(await asyncio.gather(*map(collect, range(num_requests)))), watcher
    finally:
        await engine.stop()


def right(number: int) -> tuple[int, ...]:
    tokens = [*PROMPT, number]
    for _ in range(NUM_TOKENS):
        tokens.append(script(tokens))
    return tuple(tokens[4:])


def check(events: list[GenerationEvent]) -> list[SpeculationStats]:
    assert [event.token_ids for event in events] == [right(number) for number in range(3)]
    assert all(event.finish_reason == "length" for event in events)
    return [event.stats for event in events if event.stats is not None]


async def test_drafts_are_accepted(address: str) -> None:
    async with drafting(address) as drafter:
        events, watcher = await answers(drafter, lambda step: None)
    stats = check(events)
    assert all(
        one.num_accepted_draft_tokens == one.num_draft_tokens > NUM_TOKENS / 2 for one in stats
    )
    assert len(watcher.steps) < NUM_TOKENS / 3


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGTERM])
async def test_killed_in_mid_stream_and_restarted(harm: signal.Signals) -> None:
    """The text is what it would have been, nobody sees an error, and drafts come back."""
    with process() as (child, address), process(version=2) as (_, successor):
        back = asyncio.Event()

        async def respawn() -> str:
            back.set()
            return successor

        async with drafting(address, respawn) as drafter:
            events, watcher = await answers(drafter, kill_at(5, child, harm))
            assert drafter.weights_version == 2
    check(events)
    assert back.is_set()
    drafted = [record.num_draft_nodes > 0 for record in watcher.steps]
    killed = drafted.index(False, 3)
    assert any(drafted[killed:])


def kill_at(step: int, child: BaseProcess, harm: signal.Signals) -> Callable[[int], None]:
    def on_step(count: int) -> None:
        if count == step:
            assert child.pid is not None
            os.kill(child.pid, harm)
            child.join()

    return on_step
