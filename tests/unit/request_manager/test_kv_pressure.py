"""Requests that share KV, and requests that have to give it up: the text is what it would be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from actors.request_manager.config import SchedulerConfig
from actors.request_manager.generation import GenerationEvent, SpeculationOptions
from actors.request_manager.ports import Draft, DraftTask
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from tests.unit.request_manager.house import (
    House,
    OracleDrafter,
    ask,
    collect,
    expected,
    whole_script,
)

PREFIX = [5, 1, 4, 2, 3, 0] * 6
LIMITS = SchedulerConfig(max_batch_tokens=16, kv_block_tokens=4)
OFF = LIMITS.model_copy(update={"kv_prefix_reuse": False})


def house_of(limits: SchedulerConfig = LIMITS, *, drafts: bool = False, **more: int) -> House:
    drafters = (OracleDrafter(next_token=whole_script),) if drafts else ()
    return House(drafters, scheduling=limits, next_token=whole_script, **more)


def own(text: Sequence[int], num_tokens: int = 20, seed: int = 0) -> tuple[int, ...]:
    return expected(text, num_tokens, seed, whole_script)


def prompts_run(house: House) -> int:
    """Tokens of rows before which nothing, or only reused KV, was committed for the request."""
    return sum(len(row.tree) for message in house.llm.messages for row in message.rows)


async def together(house: House, prompts: Sequence[Sequence[int]]) -> list[GenerationEvent]:
    async with house as engine:
        return await asyncio.gather(
            *(collect(engine, ask(prompt, name=str(n))) for n, prompt in enumerate(prompts))
        )


def cached(answer: GenerationEvent) -> int:
    assert answer.stats is not None
    return answer.stats.num_cached_tokens


@pytest.mark.parametrize("drafts", [False, True])
async def test_a_shared_prefix_is_computed_once(drafts: bool) -> None:
    """Also when everybody comes at the same time: the others wait for the first."""
    prompts = [[*PREFIX, place] for place in range(8)]
    house, plain = house_of(drafts=drafts), house_of(OFF, drafts=drafts)
    answers, apart = await together(house, prompts), await together(plain, prompts)
    for prompt, answer, other in zip(prompts, answers, apart, strict=True):
        assert answer.token_ids == other.token_ids == own(prompt)
    assert [cached(answer) for answer in answers] == [0] + [len(PREFIX)] * 7
    assert [cached(answer) for answer in apart] == [0] * 8
    if not drafts:
        assert prompts_run(plain) - prompts_run(house) == 7 * len(PREFIX)
    assert sum(step.reused_tokens for step in house.watcher.steps) == 7 * len(PREFIX)
    assert sum(step.queried_tokens for step in house.watcher.steps) == 8 * (len(PREFIX) + 1)


@pytest.mark.parametrize("length", [4, 7, 8, 9, 12])
async def test_one_token_is_always_run(length: int) -> None:
    house = house_of()
    async with house as engine:
        answers = [await collect(engine, ask(PREFIX[:length], name=n)) for n in "ab"]
    assert [answer.token_ids for answer in answers] == [own(PREFIX[:length])] * 2
    assert cached(answers[1]) == (length - 1) // 4 * 4


@pytest.mark.parametrize("drafts", [False, True])
async def test_an_answer_serves_the_next_turn_of_a_conversation(drafts: bool) -> None:
    house = house_of(drafts=drafts)
    async with house as engine:
        answer = await collect(engine, ask(PREFIX, 30))
        turn = [*PREFIX, *answer.token_ids, 3, 2, 1]
        second = await collect(engine, ask(turn, 10, "b"))
    assert second.token_ids == own(turn, 10)
    # The last token of an answer is never run, so it has no KV.
    assert cached(second) == (len(PREFIX) + 29) // 4 * 4


async def test_output_is_not_shared_where_the_ranks_do_not_promise_invariance() -> None:
    house = house_of()
    house.llm._description = replace(house.llm._description, batch_invariant=False)
    async with house as engine:
        answer = await collect(engine, ask(PREFIX[:10], 30))
        turn = [*PREFIX[:10], *answer.token_ids]
        second = await collect(engine, ask(turn, 10, "b"))
    assert second.token_ids == own(turn, 10)
    assert cached(second) == 8


async def test_scored_prompts_are_run_whole() -> None:
    house = house_of()
    async with house as engine:
        await collect(engine, ask(PREFIX))
        scored = await collect(engine, ask(PREFIX, 5, "b", prompt_logprobs=1))
    assert [entry.token_id for entry in scored.prompt_logprobs] == PREFIX[1:]
    assert scored.token_ids == own(PREFIX, 5)
    assert cached(scored) == 0


@pytest.mark.parametrize("num_events", range(1, 12))
async def test_whoever_shares_is_untouched_by_a_cancel(num_events: int) -> None:
    house = house_of(drafts=True)
    async with house as engine:
        first = asyncio.create_task(collect(engine, ask(PREFIX, 60, "first")))
        second = asyncio.create_task(collect(engine, ask([*PREFIX, 1], 60, "second")))
        for _ in range(num_events):
            await asyncio.sleep(0)
        first.cancel()
        answer = await second
        third = await collect(engine, ask([*PREFIX, 2], name="third"))
    assert answer.token_ids == own([*PREFIX, 1], 60)
    assert third.token_ids == own([*PREFIX, 2])


async def test_kept_blocks_give_way_to_what_runs() -> None:
    house = house_of(num_blocks=12)
    prompts = [[place, *PREFIX[:20]] for place in range(6)]
    async with house as engine:
        for _ in range(2):
            for place, prompt in enumerate(prompts):
                answer = await collect(engine, ask(prompt, 20, str(place)))
                assert answer.token_ids == own(prompt)
    assert sum(step.preemptions for step in house.watcher.steps) == 0


@pytest.mark.parametrize("reuse", [LIMITS, OFF], ids=["reuse", "no reuse"])
@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("drafts", [False, True])
async def test_the_text_is_the_same_with_preemption_all_the_time(
    drafts: bool, num_groups: int, reuse: SchedulerConfig
) -> None:
    """12 blocks of 4 hold 48 tokens; eight requests of up to 44 want 330."""
    house = house_of(reuse, drafts=drafts, num_groups=num_groups, num_blocks=12)
    prompts = [[seed, 1, 2][: seed % 3 + 1] for seed in range(8)]
    async with house as engine:
        answers = await asyncio.gather(
            *(
                collect(engine, ask(prompt, 41, str(seed), sampling=SamplingParams(0.0, seed=seed)))
                for seed, prompt in enumerate(prompts)
            )
        )
    for seed, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        assert answer.token_ids == own(prompt, 41, seed)
    assert sum(step.preemptions for step in house.watcher.steps) > 5


class WildDrafter:
    """Brings many drafts, never a right one."""

    name = "wild"

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        tree = TokenTree.from_paths([(token,) for token in range(100, 130)])
        return {task.request_id: Draft(tree, (0.5,) * len(tree)) for task in tasks}

    def forget(self, request_id: int) -> None:
        pass


@pytest.mark.parametrize("num_groups", [1, 2])
async def test_speculation_never_drives_anybody_out(num_groups: int) -> None:
    """The cache holds the three to the last block; drafts get what is left until it is needed."""
    limits = LIMITS.model_copy(update={"max_batch_tokens": 256})
    house = House(
        (WildDrafter(),),
        scheduling=limits,
        next_token=whole_script,
        num_blocks=18,
        num_groups=num_groups,
    )
    answers = await together(house, [[seed, 1, 2, 3, 0] for seed in range(3)])
    for seed, answer in enumerate(answers):
        assert answer.token_ids == own([seed, 1, 2, 3, 0])
    assert sum(step.preemptions for step in house.watcher.steps) == 0
    assert sum(step.num_draft_nodes for step in house.watcher.steps) > 100
    assert sum(len(message.trims) for message in house.llm.messages) > 3


async def test_the_oldest_is_never_preempted() -> None:
    house = house_of(drafts=True, num_blocks=12)
    async with house as engine:
        answers = await asyncio.gather(
            *(collect(engine, ask([seed, 1], 44, str(seed))) for seed in range(6))
        )
    assert [answer.token_ids for answer in answers] == [own([seed, 1], 44) for seed in range(6)]
    announced = [new.request_id for message in house.llm.messages for new in message.new]
    assert announced.count(0) == 1
    assert len(announced) > 6


async def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    house = house_of(num_blocks=12)
    async with house as engine:
        first = asyncio.create_task(collect(engine, ask([1, 2], 30, "first")))
        second = asyncio.create_task(collect(engine, ask(PREFIX[:12], 20, "second")))
        answers = await asyncio.gather(first, second)
    assert [answer.token_ids for answer in answers] == [own([1, 2], 30), own(PREFIX[:12], 20)]
    again = [new for message in house.llm.messages for new in message.new if new.request_id == 1]
    assert len(again) > 1
    assert again[-1].reused_blocks
    assert cached(answers[1]) == 0, "what it found of its own later is not told to the client"


async def test_after_a_death_the_first_prefill_serves_the_others() -> None:
    prompts = [[*PREFIX, place] for place in range(6)]
    house = house_of(drafts=True)
    house.llm.fail_at = {9}
    answers = await together(house, prompts)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == own(prompt)
    revived = [message for message in house.llm.messages if message.epoch == 1]
    reused = {new.request_id: len(new.reused_blocks) for m in revived for new in m.new}
    assert reused.pop(0) == 0, "the map was emptied with the ranks"
    assert all(count >= len(PREFIX) // 4 for count in reused.values())


async def test_speculation_off_for_one_shares_with_one_that_speculates() -> None:
    house = house_of(drafts=True)
    async with house as engine:
        plain = SpeculationOptions(enabled=False)
        first = await collect(engine, ask(PREFIX, 30, "a"))
        turn = [*PREFIX, *first.token_ids]
        second = await collect(engine, ask(turn, 30, "b", speculation=plain))
        third = await collect(engine, ask([*turn, *second.token_ids], 5, "c"))
    assert second.token_ids == own(turn, 30)
    assert third.token_ids == own([*turn, *second.token_ids], 5)
    assert cached(third) == (len(turn) + 29) // 4 * 4
