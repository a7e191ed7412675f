"""An LLM that dies while nothing runs, or in the middle of everything, is brought back once."""

from __future__ import annotations

import asyncio

import pytest

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
