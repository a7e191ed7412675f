"""Steps that are lost, by the death of ranks or a fault of ours: who goes on, who is given up."""

from __future__ import annotations

import asyncio

import pytest

from actors.errors import UnavailableError
from actors.request_manager import recovery
from actors.request_manager.engine import Engine
from actors.request_manager.guessing import Guessing
from actors.request_manager.recovery import MAX_FAILURES
from actors.request_manager.scheduler import Scheduler
from actors.request_manager.turns import Turn
from tests.unit.request_manager.house import House, OracleDrafter, ask, collect, expected


@pytest.mark.parametrize("num_groups", [1, 2])
async def test_death_of_the_llm_costs_a_pause_only(num_groups: int) -> None:
    house = House((OracleDrafter(),), num_groups=num_groups)
    house.llm.fail_at = {1, 6, 9}
    async with house as engine:
        answers = await asyncio.gather(
            *(collect(engine, ask([seed, 1, 2], 40, str(seed))) for seed in range(4))
        )
    assert house.llm.num_restores == 3
    for seed, answer in enumerate(answers):
        assert answer.token_ids == expected([seed, 1, 2], 40)


async def test_a_request_that_kills_the_llm_is_given_up() -> None:
    house = House()
    house.llm.fail_at = {0, 1, 2}
    async with house as engine:
        with pytest.raises(UnavailableError, match="repeatedly"):
            await collect(engine, ask())
        assert (await collect(engine, ask(name="b"))).token_ids == expected([1, 2, 3], 20)


async def test_a_fault_while_planning_does_not_end_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House()
    house.num_faults = 1
    faults = iter([RuntimeError("a fault of ours")])
    plan = Scheduler.plan

    def faulty(self: Scheduler, group: int) -> list[Turn]:
        for fault in faults:
            raise fault
        return plan(self, group)

    monkeypatch.setattr(Scheduler, "plan", faulty)
    async with house as engine:
        assert (await collect(engine, ask())).token_ids == expected([1, 2, 3], 20)
        engine.require_running()


async def test_a_request_at_which_we_always_fail_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the ranks are sent anything of it."""
    poison = [9, 9, 9]
    choose = Guessing.choose

    def faulty(self, trees, turns, room):
        if any(turn.request.tokens[:3] == poison for turn in turns):
            raise RuntimeError("a fault of ours")
        return choose(self, trees, turns, room)

    monkeypatch.setattr(Guessing, "choose", faulty)
    house = House((OracleDrafter(),))
    house.num_faults = MAX_FAILURES
    async with house as engine:
        good = asyncio.create_task(collect(engine, ask()))
        with pytest.raises(UnavailableError, match="repeatedly"):
            await collect(engine, ask(poison, name="bad"))
        assert (await good).token_ids == expected([1, 2, 3], 20)


async def test_a_description_that_cannot_be_adopted_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "RESTORE_BACKOFF_S", (0.0,))
    house = House()
    house.num_faults = 1
    faults = iter([RuntimeError("a fault of ours")])
    adopt = Engine._adopt

    def faulty(self, description):
        for fault in faults:
            raise fault
        adopt(self, description)

    monkeypatch.setattr(Engine, "_adopt", faulty)
    async with house as engine:
        house.llm.die()
        await house.settle()
        assert (await collect(engine, ask())).token_ids == expected([1, 2, 3], 20)
        engine.require_running()
