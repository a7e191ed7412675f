"""Drafters that learn see what the LLM drew, of whom they may, and change nothing of the text."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

import pytest

from actors.messages import NewRequest
from actors.request_manager.config import SchedulerConfig
from actors.request_manager.drafter_names import NGRAM
from actors.request_manager.drafters.ngram import NgramTables
from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.drafters.suffix import SuffixDecoding
from actors.request_manager.generation import SpeculationOptions
from actors.request_manager.ports import Draft, DraftTask, StepDraws
from actors.sampling import SamplingParams
from tests.unit.request_manager.house import House, OracleDrafter, ask, collect, expected, script

GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=1.0, seed=1)
MEMORY = 1 << 16


class Pupil(OracleDrafter):
    """Guesses well and badly, under the name of one that learns, and remembers what it is told."""

    name = NGRAM

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[StepDraws] = []
        self.texts: list[tuple[int, ...]] = []

    def observe(self, steps: Sequence[StepDraws]) -> None:
        for step in steps:
            self.steps.append(step)
            self.texts.append(tuple(step.token_ids))


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, seed=seed)


async def test_every_token_that_was_drawn_is_told_with_its_place() -> None:
    pupil = Pupil()
    async with House([pupil]) as engine:
        await asyncio.gather(
            *(collect(engine, ask(sampling=sampled(seed), prompt=(seed, 5))) for seed in range(4))
        )
    assert sum(len(step.tree) for step in pupil.steps) > 20
    for step, text in zip(pupil.steps, pupil.texts, strict=True):
        new = NewRequest(0, step.prompt_len, sampled(text[0]))
        root = text[: step.root + 1]
        for node, token in step.drawn_ids.items():
            path = step.tree.path_tokens(node) if node >= 0 else ()
            assert token == script([*root, *path], new)
        assert len(step.drawn_ids) == len(step.tree) + 1
        assert text[step.root + 1] == step.drawn_ids[-1]
    over = [text for step, text in zip(pupil.steps, pupil.texts, strict=True) if step.is_over]
    assert sorted(over) == [(seed, 5, *expected((seed, 5), 20, seed)) for seed in range(4)]


@pytest.mark.parametrize(
    ("more", "is_told"),
    [
        ({}, True),
        ({"speculation": SpeculationOptions(drafters=(NGRAM,))}, True),
        ({"speculation": SpeculationOptions(drafters=())}, False),
        ({"speculation": SpeculationOptions(enabled=False)}, False),
        ({"internal": True}, False),
        ({"return_trees": True}, False),
        ({"speculation": SpeculationOptions(verification="typical"), "sampling": DRAWN}, False),
    ],
)
async def test_requests_that_keep_a_drafter_out_teach_it_nothing(more, is_told) -> None:
    pupil = Pupil()
    async with House([pupil]) as engine:
        await collect(engine, ask(**more))
    assert bool(pupil.steps) is is_told


async def test_who_sees_drafts_sees_none_that_others_may_have_been_answered() -> None:
    async with House([Pupil(), OracleDrafter()]) as engine:
        for is_shown in (False, True):
            asked = ask(return_trees=is_shown)
            trees = [tree async for event in engine.generate(asked) for tree in event.trees]
    proposers = {name for tree in trees for names in tree.proposers for name in names}
    assert proposers == {OracleDrafter.name}


def words(tokens: Sequence[int], new: NewRequest) -> int:
    """Sentences out of a few, much alike in all requests, chosen by the seed."""
    tail = tuple(tokens[-2:])
    spread = 2 if len(tokens) % 7 == 0 else 1
    return random.Random(f"{tail}{new.sampling.seed % spread}").randrange(40)


@pytest.mark.parametrize("num_groups", [1, 2])
async def test_the_text_is_the_same_and_comes_in_fewer_steps(num_groups: int) -> None:
    drafters = [SuffixDecoding(MEMORY), NgramTables(MEMORY), PromptLookup()]
    prompts = [((seed % 3, 5), seed) for seed in range(12)]
    room = SchedulerConfig(max_batch_tokens=256, kv_block_tokens=4)
    house = House(drafters, next_token=words, num_groups=num_groups, scheduling=room)
    async with house as engine:
        for _ in range(2):
            events = await asyncio.gather(
                *(collect(engine, ask(prompt, sampling=sampled(seed))) for prompt, seed in prompts)
            )
            for event, (prompt, seed) in zip(events, prompts, strict=True):
                assert event.token_ids == expected(prompt, 20, seed, words)
    # The second time everything has been answered before.
    assert sum(event.stats.num_llm_steps for event in events) < 12 * 19 / 4


class Remembering(SuffixDecoding):
    """Notes whose drafts it made."""

    def __init__(self) -> None:
        super().__init__(MEMORY)
        self.drafted: list[int] = []

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        drafts = await super().draft(tasks)
        self.drafted += drafts
        return drafts


async def test_what_one_request_was_answered_helps_the_next() -> None:
    def counting(tokens: Sequence[int], new: NewRequest) -> int:
        return tokens[-1] + 1

    drafter = Remembering()
    async with House([drafter], next_token=counting) as engine:
        first = await collect(engine, ask((1, 2, 3)))
        assert drafter.drafted == []  # nothing comes twice
        second = await collect(engine, ask((7, 2, 3)))
    assert first.token_ids == second.token_ids
    assert (first.stats.num_llm_steps, second.stats.num_llm_steps) == (19, 2)
