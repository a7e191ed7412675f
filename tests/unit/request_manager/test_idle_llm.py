"""An LLM that dies while nothing runs, or in the middle of everything, is brought back once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from actors.request_manager.ports import Draft, DraftTask
from actors.request_manager.recovery import MAX_FAILURES
from tests.unit.request_manager.house import House, OracleDrafter, ask, collect, expected


@pytest.mark.parametrize("num_groups", [1, 2])
async def test_the_death_of_an_idle_llm_is_seen_to_at_once(num_groups: int) -> None:
    house = House((OracleDrafter(),), num_groups=num_groups)
    async with house as engine:
        await collect(engine, ask())
        for deaths in (1, 2):
            house.llm.die()
            await house.settle()
            assert house.llm.num_restores == deaths
        answer = await collect(engine, ask(name="b"))
    assert house.llm.num_restores == 2
    assert answer.token_ids == expected([1, 2, 3], 20)


async def test_a_death_in_the_middle_of_steps_is_seen_to_once() -> None:
    house = House((OracleDrafter(),), num_groups=2)
    house.llm.hold = asyncio.Event()
    async with house as engine:
        running = asyncio.gather(*(collect(engine, ask(name=name)) for name in "abcd"))
        for _ in range(20):
            await asyncio.sleep(0)
        house.llm.die()
        house.llm.hold.set()
        answers = await running
    assert house.llm.num_restores == 1
    assert [answer.token_ids for answer in answers] == [expected([1, 2, 3], 20)] * 4


class DeadlyDrafter(OracleDrafter):
    """The LLM dies as often while it drafts, and is back before it has answered."""

    num_deaths = 2 * MAX_FAILURES

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        if self.num_deaths:
            self.num_deaths -= 1
            self.llm.die()
            for _ in range(10):
                await asyncio.sleep(0)
        return await super().draft(tasks)


async def test_deaths_while_drafts_are_made_are_held_against_nobody() -> None:
    drafter = DeadlyDrafter()
    house = House((drafter,))
    drafter.llm = house.llm
    prompt = [7, 8, 9] * 20  # takes so many steps that it has no token before the next death
    async with house as engine:
        short, long = await asyncio.gather(
            collect(engine, ask()), collect(engine, ask(prompt, name="long"))
        )
    assert house.llm.num_restores == 2 * MAX_FAILURES
    assert short.token_ids == expected([1, 2, 3], 20)
    assert long.token_ids == expected(prompt, 20)
