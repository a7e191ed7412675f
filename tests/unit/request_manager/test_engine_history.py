"""Any order of submissions, steps, cancellations and deaths: text and books are right after each.

Steps of the LLM are let through one by one, so that everything else can happen between them. The
cache is so small that requests are preempted, and the prompts so alike that they share KV.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.errors import PeerUnavailable, UnavailableError
from actors.messages import StepMessage, StepReply
from actors.request_manager.config import SchedulerConfig
from actors.request_manager.engine import Engine
from actors.request_manager.generation import GenerationRequest, SpeculationOptions
from actors.request_manager.scripted_llm import ScriptedLLM
from actors.sampling import SamplingParams
from tests.unit.request_manager.house import House, OracleDrafter, ask, expected, whole_script

T = TypeVar("T")

NUM_BLOCKS = 14
PREFIX = (5, 1, 4, 2, 3, 0, 1, 1, 2, 5, 3, 4)
LIMITS = SchedulerConfig(max_batch_tokens=16, max_running_requests=5, kv_block_tokens=4)


class GatedLLM(ScriptedLLM):
    """Runs a step when it is told to."""

    def __init__(self) -> None:
        super().__init__(whole_script, num_blocks=NUM_BLOCKS)
        self.waiting: list[asyncio.Future[bool]] = []

    async def step(self, message: StepMessage) -> StepReply:
        gate = asyncio.get_running_loop().create_future()
        self.waiting.append(gate)
        if not await gate:
            raise PeerUnavailable("the step is lost")
        return await super().step(message)

    def let_one_through(self) -> None:
        self.waiting.pop(0).set_result(True)

    def die(self) -> None:
        """Lose every step that is on its way."""
        self.num_deaths += 1
        for gate in self.waiting:
            gate.set_result(False)
        self.waiting.clear()


@dataclass
class Reader:
    """Who asked for an output, and what came of it so far."""

    asked: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    async def read(self, engine: Engine) -> None:
        async for news in engine.generate(self.asked):
            self.tokens.extend(news.token_ids)

    @property
    def right(self) -> tuple[int, ...]:
        asked = self.asked
        return expected(asked.prompt_ids, asked.stop.max_tokens, asked.sampling.seed, whole_script)


class EngineHistory(RuleBasedStateMachine):
    """One group of requests."""

    num_groups = 1

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.llm = GatedLLM()
        self.house = House(
            (OracleDrafter(next_token=whole_script),),
            num_groups=self.num_groups,
            scheduling=LIMITS,
        )
        self.house.llm = self.llm
        self.engine: Engine = self.run(self.house.__aenter__())
        self.readers: list[Reader] = []

    def run(self, what: Coroutine[None, None, T]) -> T:
        async def and_settle() -> T:
            result = await what
            for _ in range(40):
                await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(and_settle())

    @property
    def live(self) -> list[Reader]:
        return [reader for reader in self.readers if reader.task and not reader.task.done()]

    @rule(
        num_shared=st.integers(1, len(PREFIX)),
        tail=st.lists(st.integers(0, 5), max_size=4),
        max_tokens=st.integers(1, 36),
        seed=st.integers(0, 1),
        speculates=st.booleans(),
    )
    def submit(
        self, num_shared: int, tail: list[int], max_tokens: int, seed: int, speculates: bool
    ) -> None:
        asked = ask(
            (*PREFIX[:num_shared], *tail),
            max_tokens,
            str(len(self.readers)),
            sampling=SamplingParams(temperature=0.0, seed=seed),
            speculation=SpeculationOptions(enabled=speculates),
        )
        reader = Reader(asked)
        self.readers.append(reader)

        async def start() -> None:
            reader.task = asyncio.create_task(reader.read(self.engine))

        self.run(start())

    @precondition(lambda self: self.llm.waiting)
    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        async def let_through() -> None:
            self.llm.let_one_through()

        for _ in range(count):
            if self.llm.waiting:
                self.run(let_through())

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.live))

        async def cancel() -> None:
            assert reader.task is not None
            reader.task.cancel()

        self.run(cancel())

    @precondition(lambda self: self.llm.waiting)
    @rule()
    def die(self) -> None:
        async def die() -> None:
            self.llm.die()

        self.run(die())

    @invariant()
    def books_balance(self) -> None:
        self.engine.audit()

    @invariant()
    def no_step_is_refused(self) -> None:
        assert self.llm.num_restores == self.llm.num_deaths

    @invariant()
    def texts_are_right(self) -> None:
        for reader in self.readers:
            assert tuple(reader.tokens) == reader.right[: len(reader.tokens)]
            if reader.task and reader.task.done() and not reader.task.cancelled():
                error = reader.task.exception()
                if error is None:
                    assert tuple(reader.tokens) == reader.right
                else:
                    assert isinstance(error, UnavailableError), error

    def teardown(self) -> None:
        for _ in range(50 * 36 * 2):  # a step a token, and as many for prompts
            if not self.llm.waiting:
                break
            self.step(1)
        assert not self.live, "somebody waits for ever"
        self.texts_are_right()
        self.run(self.house.__aexit__(None, None, None))
        if any(step.preemptions for step in self.house.watcher.steps):
            event("somebody was preempted")
        if any(step.reused_tokens for step in self.house.watcher.steps):
            event("KV was reused")
        self.loop.close()


class EngineHistoryOfGroups(EngineHistory):
    """Two groups that take steps independently of each other."""

    num_groups = 2


LENGTH = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestEngineHistory = EngineHistory.TestCase
TestEngineHistory.settings = LENGTH
TestEngineHistoryOfGroups = EngineHistoryOfGroups.TestCase
TestEngineHistoryOfGroups.settings = LENGTH
