"""Replicas of one draft model: who has which request, and what happens when one is away."""

from __future__ import annotations

import asyncio
from collections import Counter

from actors.request_manager.drafter_names import kind_of
from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.drafting import Drafting
from actors.request_manager.ports import Draft, DraftTask
from actors.request_manager.replicas import Replicas, by_name
from actors.sampling import SamplingParams
from actors.tree import CONTEXT, TokenTree
from tests.unit.request_manager.house import House, ask, collect


class Replica:
    """Proposes the token that is its number, or fails, or never answers."""

    def __init__(self, token: int, name: str = "ssm") -> None:
        self.name = name
        self.is_away = False
        self.hangs = False
        self.asked: list[list[int]] = []
        self.forgotten: list[int] = []
        self._token = token

    async def draft(self, tasks):
        self.asked.append([task.request_id for task in tasks])
        if self.hangs:
            await asyncio.Event().wait()
        draft = Draft(TokenTree((self._token,), (CONTEXT,)), (0.5,))
        return {task.request_id: draft for task in tasks}

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)


def task(request_id: int, drafters: tuple[str, ...] | None = None) -> DraftTask:
    return DraftTask(request_id, (1, 2), 1, SamplingParams(), 4, 4, drafters)


def places(replicas: Replicas, *request_ids: int) -> dict[int, Replica]:
    return {
        one.request_id: drafter
        for drafter, tasks in replicas.split([task(one) for one in request_ids])
        for one in tasks
    }


def test_requests_are_spread_and_stay_where_they_are() -> None:
    replicas = Replicas([Replica(place) for place in range(3)])
    first = places(replicas, *range(9))
    assert set(Counter(first.values()).values()) == {3}
    assert places(replicas, *reversed(range(9))) == first
    for request_id in [one for one, place in first.items() if place is replicas.drafters[1]]:
        replicas.forget(request_id)
    assert all(place.forgotten for place in replicas.drafters)
    assert places(replicas, 20)[20] is replicas.drafters[1], "where the fewest are"


def test_who_is_away_hands_its_requests_over_until_it_is_back() -> None:
    replicas = Replicas([Replica(place) for place in range(2)])
    one, other = replicas.drafters
    first = places(replicas, *range(4))
    one.is_away = True
    assert set(places(replicas, *range(6)).values()) == {other}
    one.is_away = False
    assert places(replicas, *range(4)) == dict.fromkeys(range(4), other), "the text is there now"
    assert places(replicas, 9)[9] is one
    one.is_away = other.is_away = True
    assert first.keys() == places(replicas, *range(4)).keys(), "somebody is asked, and says so"


async def test_one_replica_that_hangs_costs_only_its_own_requests() -> None:
    pool = [Replica(7), Replica(8), Replica(9, "other")]
    drafting = Drafting(pool, 0.02)
    pool[0].hangs = True
    answered, seconds = await drafting.ask([task(0), task(1)], lambda name, task: True)
    assert seconds["ssm"] > seconds["other"] >= 0.0
    assert {one: list(by) for one, by in answered.items()} == {0: ["other"], 1: ["ssm", "other"]}
    assert answered[1]["ssm"].tree.token_ids == (8,)
    assert drafting.failures == {"ssm": 1}
    drafting.forget(0)
    assert [one.forgotten for one in pool] == [[0]] * 3


def test_a_request_may_name_a_draft_model_or_all_of_them() -> None:
    for wish, allowed in (
        (None, ["ssm-0", "ssm-1", "prompt_lookup"]),
        (("ssm",), ["ssm-0", "ssm-1"]),
        (("ssm-1",), ["ssm-1"]),
        ((), []),
    ):
        names = ("ssm-0", "ssm-1", "prompt_lookup")
        assert [name for name in names if task(0, wish).allows(name)] == allowed
    assert list(map(kind_of, ("ssm", "ssm-12", "prompt_lookup"))) == ["ssm", "ssm", "prompt_lookup"]


def test_drafters_of_one_name_are_one() -> None:
    found = by_name([Replica(0), Replica(1, "b"), Replica(2)])
    assert [(name, len(same.drafters)) for name, same in found.items()] == [("ssm", 2), ("b", 1)]


class Waiting(Replica):
    """Answers at once, as a drafter without a model does, but only when it is let."""

    def __init__(self) -> None:
        super().__init__(1, PromptLookup.name)
        self.go_on = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def draft(self, tasks):
        self.is_asked.set()
        await self.go_on.wait()
        return await super().draft(tasks)


async def test_who_is_cancelled_between_two_rounds_of_asking_leaves_nothing_behind() -> None:
    """The LLM dies meanwhile, so that the request is in no step and ends at once."""
    free, pool = Waiting(), [Replica(0), Replica(1)]
    house = House((free, *pool))
    async with house as engine:
        engine._guessing._drafting._deadline_s = 60.0
        asking = asyncio.create_task(collect(engine, ask()))
        await free.is_asked.wait()
        house.llm.die()
        for _ in range(20):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        free.go_on.set()
        await house.settle()
    assert not any(one.asked for one in pool)
    assert not engine._guessing._drafting._drafters["ssm"]._places
