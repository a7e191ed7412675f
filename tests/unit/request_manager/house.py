"""An engine with a scripted LLM, drafters of every sort, and what the tests ask of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

from actors.messages import NewRequest
from actors.request_manager.config import SchedulerConfig, SpeculationConfig
from actors.request_manager.engine import Engine
from actors.request_manager.generation import (
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    StopConditions,
)
from actors.request_manager.ports import Draft, Drafter, DraftTask, StepRecord
from actors.request_manager.scripted_llm import NextToken, ScriptedLLM
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from actors.vocabulary import Vocabulary

EOS = 255
VOCABULARY = Vocabulary(
    (*tuple(bytes([byte]) for byte in range(255)), b""),
    (*tuple(chr(byte) for byte in range(255)), "<eos>"),
    frozenset({EOS}),
)
GREEDY = SamplingParams(temperature=0.0)


def script(tokens: Sequence[int], new: NewRequest) -> int:
    """A periodic but context-dependent text, different for each seed."""
    recent = tuple(tokens[-3:])
    return random.Random(f"{recent}{new.sampling.seed}{len(tokens) % 5}").randrange(6)


def whole_script(tokens: Sequence[int], new: NewRequest) -> int:
    """Depends on every token, so that any wrong one before shows."""
    return random.Random(f"{tuple(tokens)}{new.sampling.seed}").randrange(6)


def expected(
    prompt: Sequence[int], num_tokens: int, seed: int = 0, next_token: NextToken = script
) -> tuple[int, ...]:
    tokens = list(prompt)
    new = NewRequest(0, len(prompt), SamplingParams(temperature=0.0, seed=seed))
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, new))
    return tuple(tokens[len(prompt) :])


class OracleDrafter:
    """Knows the script; mixes its next tokens with wrong branches."""

    name = "oracle"

    def __init__(self, seed: int = 0, next_token: NextToken = script) -> None:
        self._random = random.Random(seed)
        self._next_token = next_token
        self.forgotten: list[int] = []

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        return {task.request_id: self._draft(task) for task in tasks}

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)

    def _draft(self, task: DraftTask) -> Draft:
        new = NewRequest(0, task.prompt_len, task.sampling)
        tokens = list(task.token_ids)
        right: list[int] = []
        for _ in range(self._random.randrange(6)):
            right.append(self._next_token([*tokens, *right], new))
        wrong = [
            [*right[: self._random.randrange(len(right) + 1)], self._random.randrange(6)]
            for _ in range(3)
        ]
        tree = TokenTree.from_paths([*wrong[:1], right, *wrong[1:]])
        return Draft(tree, tuple(self._random.random() for _ in range(len(tree))))


class BrokenDrafter:
    name = "broken"

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        raise RuntimeError("no idea")

    def forget(self, request_id: int) -> None:
        pass


class LateDrafter:
    name = "late"

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        await asyncio.Event().wait()
        raise AssertionError("never")

    def forget(self, request_id: int) -> None:
        pass


class WrongDrafter:
    """Breaks every rule that a draft has."""

    name = "wrong"

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        faults = [
            Draft(TokenTree.chain([9999]), (0.5,)),
            Draft(TokenTree.chain([1, 2]), (0.5,)),
            Draft(TokenTree.chain([1]), (float("nan"),)),
        ]
        return {task.request_id: faults[task.request_id % 3] for task in tasks}

    def forget(self, request_id: int) -> None:
        pass


class Watcher:
    """Remembers what it sees, and calls `after_step` after every step."""

    def __init__(self) -> None:
        self.after_step: Callable[[], None] = lambda: None
        self.finished: list[FinishReason] = []
        self.steps: list[StepRecord] = []
        self.last_gauges: tuple[int, int, int] | None = None

    def request_finished(self, reason, *args) -> None:
        self.finished.append(reason)

    def step_done(self, record: StepRecord) -> None:
        self.steps.append(record)
        self.after_step()

    def gauges(self, running: int, waiting: int, tokens: int, used: int, total: int) -> None:
        self.last_gauges = (running, waiting, used)


class House:
    """An engine and what stands around it.

    Attributes:
        num_faults: steps that are to go wrong by other reasons than the death of the LLM.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter] = (),
        *,
        num_groups: int = 1,
        scheduling: SchedulerConfig | None = None,
        next_token=script,
        **llm: int,
    ) -> None:
        self.llm = ScriptedLLM(next_token, **llm)
        self.watcher = Watcher()
        self.num_faults = 0
        self.drafters = drafters
        self.num_groups = num_groups
        self.scheduling = scheduling or SchedulerConfig(max_batch_tokens=16, kv_block_tokens=4)

    async def __aenter__(self) -> Engine:
        names = tuple(drafter.name for drafter in self.drafters)
        speculation = SpeculationConfig(drafters=(), budget="fixed", draft_deadline_ms=20)
        # The stand-ins are not in the registry that a configuration is checked against.
        speculation = speculation.model_copy(update={"drafters": names})
        self.engine = Engine(
            self.llm,
            await self.llm.describe(),
            VOCABULARY,
            speculation,
            self.scheduling,
            self.drafters,
            self.watcher,
            num_groups=self.num_groups,
        )
        self.watcher.after_step = self.engine.audit
        await self.engine.start()
        return self.engine

    async def __aexit__(self, *args: object) -> None:
        if args[0] is None:
            await self.settle()
        await self.engine.stop()

    async def settle(self) -> None:
        """Wait until nothing runs, then check that nothing was kept."""
        for _ in range(200):
            await asyncio.sleep(0)
        self.engine.audit()
        assert self.engine.is_idle
        assert self.llm.num_restores == self.llm.num_deaths + self.num_faults, "a step went wrong"
        assert self.llm.held == {}
        assert self.watcher.last_gauges == (0, 0, 0)


def ask(
    prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 20, name: str = "r", **more
) -> GenerationRequest:
    stop = StopConditions(max_tokens, **more.pop("stop", {}))
    return GenerationRequest(name, tuple(prompt), more.pop("sampling", GREEDY), stop, **more)


async def collect(engine: Engine, request: GenerationRequest) -> GenerationEvent:
    whole: GenerationEvent | None = None
    async for event in engine.generate(request):
        whole = whole.merged(event) if whole else event
    assert whole is not None
    return whole
