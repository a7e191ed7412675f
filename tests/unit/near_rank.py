"""The real loop over a real rank of a tiny random model, in one process and without a wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import torch

from actors.errors import PeerError
from actors.llm.loading import LoadedModel, wrap
from actors.llm.rank import Rank
from actors.messages import LLMDescription, StepMessage, StepReply
from actors.request_manager.config import SchedulerConfig, SpeculationConfig
from actors.request_manager.drafter_names import kind_of
from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.engine import Engine
from actors.request_manager.generation import GenerationEvent, GenerationRequest, StopConditions
from actors.request_manager.ports import LLM, Drafter
from actors.sampling import SamplingParams
from actors.verification import Rule
from actors.vocabulary import Vocabulary
from tests.unit.llm.tiny_models import VOCAB_SIZE, tiny_model
from tests.unit.request_manager.house import Watcher, collect

NO_EOS = Vocabulary(
    tuple(bytes([token]) for token in range(VOCAB_SIZE)),
    tuple(str(token) for token in range(VOCAB_SIZE)),
    frozenset(),
)
PROMPTS = [[3, 4, 5, 3, 4], [7] * 9, list(range(10, 30)), [3, 9, 3, 9, 3], [1, 2, 1, 2, 40]]


class NearRank:
    """The ranks' port, with the rank in this very process."""

    def __init__(
        self, rank: Rank, on_step: Callable[[StepMessage], object] = lambda message: None
    ) -> None:
        self._rank = rank
        self._on_step = on_step

    async def describe(self) -> LLMDescription:
        return self._rank.describe()

    async def step(self, message: StepMessage) -> StepReply:
        await asyncio.sleep(0)
        self._on_step(message)
        return self._rank.step(message)

    async def lost(self) -> PeerError:
        await asyncio.Event().wait()
        raise AssertionError("nothing dies here")

    async def restore(self) -> None:
        raise AssertionError("nothing dies here")


@asynccontextmanager
async def engine_on(
    num_blocks: int = 64,
    max_batch_tokens: int = 32,
    vocabulary: Vocabulary = NO_EOS,
    drafters: Sequence[Drafter] = (),
    max_depth: int = 5,
    verification: Rule = Rule.COUPLED,
) -> AsyncIterator[Engine]:
    """A running engine over a tiny model of random weights, in float64."""
    loaded = LoadedModel(
        wrap(tiny_model("llama-yarn")), torch.float64, torch.device("cpu"), 256, 0, "none"
    )
    llm = NearRank(Rank(loaded, "tiny", num_blocks, 4, vocabulary))
    async with engine_over(
        llm, Watcher(), max_batch_tokens, vocabulary, drafters=drafters
    ) as engine:
        yield engine


@asynccontextmanager
async def engine_over(
    llm: LLM,
    watcher: Watcher,
    max_batch_tokens: int = 32,
    vocabulary: Vocabulary = NO_EOS,
    num_groups: int = 1,
    drafters: Sequence[Drafter] = (),
    max_depth: int = 5,
    verification: Rule = Rule.COUPLED,
) -> AsyncIterator[Engine]:
    """A running engine that drafts by prompt lookup, or as it is told."""
    engine = Engine(
        llm,
        await llm.describe(),
        vocabulary,
        SpeculationConfig(
            drafters=tuple(dict.fromkeys(kind_of(one.name) for one in drafters))
            or ("prompt_lookup",),
            verification=verification,
            budget="fixed",
            max_tree_nodes=12,
            max_depth=max_depth,
            draft_deadline_ms=1e5,
        ),
        SchedulerConfig(
            max_batch_tokens=max_batch_tokens, max_queued_requests=3000, kv_block_tokens=4
        ),
        drafters or [PromptLookup()],
        watcher,
        num_groups=num_groups,
    )
    await engine.start()
    try:
        yield engine
    finally:
        engine.audit()
        await engine.stop()


def ask(prompt: Sequence[int], max_tokens: int = 40, **more) -> GenerationRequest:
    sampling = more.pop("sampling", SamplingParams(temperature=0.0))
    name = str((tuple(prompt), sampling, more))
    return GenerationRequest(name, tuple(prompt), sampling, StopConditions(max_tokens), **more)


async def answers(engine: Engine, requests: Sequence[GenerationRequest]) -> list[GenerationEvent]:
    return await asyncio.gather(*(collect(engine, request) for request in requests))
