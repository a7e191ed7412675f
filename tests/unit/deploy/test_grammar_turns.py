"""Whose grammar is checked next."""

import asyncio

import pytest

from deploy.grammar_turns import Turns

HOSTILE, OTHER = 0, 1


class Checks:
    """Takes turns, and keeps who got one; a turn lasts until it is given back."""

    def __init__(self, num_places: int) -> None:
        self.turns = Turns(num_places)
        self.served: list[tuple[int, int]] = []
        self.tasks: list[asyncio.Task] = []

    async def ask(self, *wishes: tuple[int, int]) -> None:
        for wish in wishes:
            self.tasks.append(asyncio.create_task(self._ask(*wish)))
            await asyncio.sleep(0)

    async def _ask(self, asker: int, size: int) -> None:
        await self.turns.take(asker, size)
        self.served.append((asker, size))

    async def end(self, asker: int) -> None:
        self.turns.give_back(asker)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_free_places_are_taken_at_once():
    checks = Checks(2)
    await checks.ask((HOSTILE, 9), (HOSTILE, 8), (HOSTILE, 7))
    assert checks.served == [(HOSTILE, 9), (HOSTILE, 8)]


async def test_whoever_has_none_under_check_goes_before_many_of_another():
    checks = Checks(2)
    await checks.ask(*[(HOSTILE, 1)] * 10, (OTHER, 1000))
    await checks.end(HOSTILE)
    assert checks.served[2:] == [(OTHER, 1000)]


async def test_of_one_asker_the_smallest_and_the_oldest_take_turns():
    checks = Checks(1)
    await checks.ask((HOSTILE, 50), *[(HOSTILE, size) for size in (90, 80, 20, 10)])
    for _ in range(4):
        await checks.end(HOSTILE)
    assert checks.served == [(HOSTILE, size) for size in (50, 90, 10, 80, 20)]


async def test_a_large_one_is_served_whatever_small_ones_come():
    checks = Checks(1)
    await checks.ask((HOSTILE, 1), (HOSTILE, 1000))
    for _ in range(2):
        await checks.ask((HOSTILE, 1))
        await checks.end(HOSTILE)
    assert (HOSTILE, 1000) in checks.served


@pytest.mark.parametrize("given_back", ["before", "meanwhile", "after"])
async def test_one_that_is_given_up_holds_no_place(given_back):
    checks = Checks(1)
    await checks.ask((HOSTILE, 1), (HOSTILE, 2), (OTHER, 3))
    if given_back == "before":
        checks.turns.give_back(HOSTILE)  # one has a turn, but has not taken it up yet
    for task in checks.tasks[1:]:
        task.cancel()
    if given_back == "meanwhile":
        checks.turns.give_back(HOSTILE)
    await asyncio.wait(checks.tasks)
    if given_back == "after":
        checks.turns.give_back(HOSTILE)
    await checks.ask((OTHER, 4))
    assert checks.served == [(HOSTILE, 1), (OTHER, 4)]
