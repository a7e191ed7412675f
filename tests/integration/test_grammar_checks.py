"""Grammars are checked in processes apart: what they say, and what brings them down."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from actors.errors import InputError, OverloadedError
from deploy.grammar_checks import MAX_INSIDE, NUM_PROCESSES, GrammarChecks
from deploy.structured_output import source_of

pytestmark = pytest.mark.integration

ASKER = 0
GOOD: list[Any] = [
    None,
    "[a-z]{3}",
    ["yes", "n\u00f6", "\ud83d\ude00"],
    {"type": "object", "properties": {"a": {"enum": ["x"] * 900}}},
]
ENDLESS = {"allOf": [{"type": "string", "pattern": f"[a-f].{{{i}}}z"} for i in range(5, 40)]}
"""Whether any text fits all of these takes hours to tell, and memory without end."""
DEAR = {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (97, 101, 103, 107)]}


@pytest.fixture
async def checks() -> AsyncIterator[GrammarChecks]:
    found = GrammarChecks()
    yield found
    found.close()
    assert not workers()


def workers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [one for one in children if "deploy.grammar_process" in one.cmdline()]


async def test_the_answer_is_as_without_a_process(checks: GrammarChecks) -> None:
    for wanted in GOOD:
        assert await checks("the.field", wanted, ASKER) == source_of("the.field", wanted)
    for wrong in ("(", {"type": "text"}, [""]):
        with pytest.raises(InputError) as apart:
            await checks("the.field", wrong, ASKER)
        with pytest.raises(InputError) as here:
            source_of("the.field", wrong)
        assert vars(apart.value) == vars(here.value)


@pytest.mark.parametrize("wanted", [ENDLESS, DEAR], ids=["endless", "dear"])
async def test_one_that_takes_too_much_is_refused_and_the_next_is_right(
    checks: GrammarChecks, wanted: Any
) -> None:
    with pytest.raises(InputError, match="too much work") as raised:
        await checks("the.field", wanted, ASKER)
    assert raised.value.param == "the.field"
    assert await checks("the.field", GOOD[1], ASKER) == source_of("", GOOD[1])


async def test_few_wait_and_plain_ones_are_told_to_come_again(checks: GrammarChecks) -> None:
    asked = [
        asyncio.create_task(checks("the.field", GOOD[1], ASKER)) for _ in range(MAX_INSIDE + 5)
    ]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [one for one in found if one != source_of("", GOOD[1])]
    assert sum(isinstance(one, OverloadedError) for one in found) == 5


async def test_a_small_one_is_not_held_up_by_hostile_ones(checks: GrammarChecks) -> None:
    hostile = [asyncio.create_task(checks("the.field", ENDLESS, ASKER)) for _ in range(10)]
    await asyncio.sleep(0)
    assert await checks("the.field", GOOD[1], ASKER) == source_of("", GOOD[1])
    assert sum(one.done() for one in hostile) <= 2 * NUM_PROCESSES
    for one in hostile:
        one.cancel()


async def test_a_verdict_is_that_of_a_fresh_process(checks: GrammarChecks) -> None:
    assert await checks("the.field", GOOD[1], ASKER)
    (worker,) = workers()
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (1, 1))  # what others may have left of it
    assert await checks("the.field", GOOD[3], ASKER) == source_of("", GOOD[3])


async def test_many_at_once_and_processes_that_are_killed(checks: GrammarChecks) -> None:
    expected = [source_of("", wanted) for wanted in GOOD * 5]
    for _ in range(3):
        asked = [checks("the.field", wanted, ASKER) for wanted in GOOD * 5]
        assert await asyncio.gather(*asked) == expected
        assert 1 <= len(workers()) <= NUM_PROCESSES
        for one in workers():
            os.kill(one.pid, signal.SIGKILL)


async def test_one_that_was_given_up_leaves_its_process_in_order(checks: GrammarChecks) -> None:
    given_up = asyncio.create_task(checks("the.field", ENDLESS, ASKER))
    await asyncio.to_thread(wait_for_worker)
    given_up.cancel()
    for wanted in GOOD * 3:
        assert await checks("the.field", wanted, ASKER) == source_of("", wanted)


def wait_for_worker() -> None:
    while not workers():
        pass
