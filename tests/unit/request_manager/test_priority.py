"""Who runs first, and who gives way, with an engine of few places and few blocks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from actors.errors import InputError, OverloadedError
from actors.request_manager.config import SchedulerConfig, SpeculationConfig
from actors.request_manager.generation import SpeculationOptions
from actors.request_manager.outbox import Outbox
from tests.unit.request_manager.house import House, ask, collect, expected


async def test_a_lower_priority_number_runs_first() -> None:
    house = House(scheduling=SchedulerConfig(max_running_requests=1, kv_block_tokens=4))
    ended: list[str] = []

    async with house as engine:

        async def run(name: str, priority: int) -> None:
            await collect(engine, replace(ask(max_tokens=5, name=name), priority=priority))
            ended.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name, priority in (("first", 9), ("late", 1), ("soon", -1), ("later", 1)):
                tasks.create_task(run(name, priority))
    # "first" may have begun before the others came; the rest stand in line.
    assert [name for name in ended if name != "first"] == ["soon", "late", "later"]


@pytest.mark.parametrize("priority", [-1, 0])
async def test_a_long_prompt_that_is_being_read_waits_for_a_more_urgent_one(priority: int) -> None:
    """192 tokens in chunks of 16; the other request comes while the third chunk is computed."""
    house = House(scheduling=SchedulerConfig(max_batch_tokens=16, kv_block_tokens=4))
    async with house as engine:
        long = asyncio.create_task(collect(engine, ask([1, 2, 3] * 64, 4, "long")))
        while len(house.llm.messages) < 3:
            await asyncio.sleep(0)
        urgent = replace(ask([4, 5, 6] * 16, 4, "urgent"), priority=priority)
        answer = await collect(engine, urgent)
        whole = await long
    assert answer.token_ids == expected([4, 5, 6] * 16, 4)
    assert whole.token_ids == expected([1, 2, 3] * 64, 4)
    rows = [row for message in house.llm.messages for row in message.rows]
    place = next(place for place, row in enumerate(rows) if row.request_id == 1)
    chunks_before = sum(row.request_id == 0 for row in rows[:place])
    if priority < 0:
        assert chunks_before <= 4, "the urgent request waited for the long prompt"
        num_between = sum(row.request_id == 0 for row in rows[place : place + 3])
        assert num_between == 0, "the long prompt went on before the urgent one was read"
    else:
        assert chunks_before >= 192 // 16


async def test_who_is_least_urgent_gives_its_blocks() -> None:
    """12 blocks of 4 hold 48 tokens; three requests of 33 tokens want 99."""
    house = House(num_blocks=12)
    async with house as engine:
        answers = await asyncio.gather(
            *(
                collect(engine, replace(ask([seed, 1, 2], 30, str(seed)), priority=-seed))
                for seed in range(3)
            )
        )
    for seed, answer in enumerate(answers):
        assert answer.token_ids == expected([seed, 1, 2], 30)
    admitted = [new.request_id for message in house.llm.messages for new in message.new]
    assert admitted.count(2) == 1, "the most urgent one, which came last, was preempted"
    assert len(admitted) > 3, "nobody was preempted: the test shows nothing"


async def test_siblings_are_refused_together_and_leave_no_trace() -> None:
    scheduling = SchedulerConfig(
        max_running_requests=1, max_queued_requests=2, max_queued_tokens=20, kv_block_tokens=4
    )
    house = House(scheduling=scheduling)
    async with house as engine:
        outbox = Outbox()
        siblings = [(ask(name=str(number)), outbox.sink(str(number))) for number in range(4)]
        with pytest.raises(OverloadedError):
            engine.submit(siblings)
        with pytest.raises(InputError):
            engine.submit([siblings[0], (ask(prompt=[]), outbox.sink("bad"))])
        assert engine.is_idle
        requests = engine.submit(siblings[:3])
        for request in requests:
            engine.cancel(request)
        assert engine.is_idle
        assert (await collect(engine, ask())).token_ids == expected([1, 2, 3], 20)


async def test_more_draft_nodes_than_the_server_allows_are_refused_by_name() -> None:
    most = SpeculationConfig().max_tree_nodes
    async with House() as engine:
        wish = SpeculationOptions(max_nodes=most + 1)
        with pytest.raises(InputError) as caught:
            await collect(engine, replace(ask(), speculation=wish))
        assert caught.value.param == "speculation.max_nodes"
        await collect(engine, replace(ask(), speculation=replace(wish, max_nodes=most)))
