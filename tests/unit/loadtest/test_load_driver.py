"""The two loops on virtual time."""

from __future__ import annotations

import asyncio

import pytest
from virtual import ScriptedSender, now_s, run_virtual, session

from loadtest.driver import Driver
from loadtest.records import Outcome
from loadtest.stub.script import Behaviour
from loadtest.vitals import watch

ANSWER = Behaviour(ttft_s=1.0, gap_s=0.0, num_tokens=1)


def test_an_open_loop_does_not_wait_for_the_server():
    driver = Driver(ScriptedSender([Behaviour(ttft_s=100.0)]))
    run_virtual(driver.open_loop([session(n, 0.5 * n) for n in range(10)]))
    assert [record.sent_s for record in driver.records] == pytest.approx(
        [0.5 * n for n in range(10)]
    )


def test_a_closed_loop_sends_when_a_user_is_free():
    driver = Driver(ScriptedSender([ANSWER]))
    sessions = [session(n, None) for n in range(6)]
    run_virtual(driver.closed_loop(sessions, 2, None))
    assert [record.sent_s for record in driver.records] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_a_closed_loop_begins_nothing_after_its_time():
    driver = Driver(ScriptedSender([ANSWER]))
    run_virtual(driver.closed_loop([session(n, None) for n in range(100)], 2, 2.5))
    assert len(driver.records) == 6
    assert all(record.outcome is Outcome.OK for record in driver.records)


def test_a_turn_follows_the_answer_before_it_and_carries_it():
    sender = ScriptedSender([ANSWER])
    driver = Driver(sender)
    run_virtual(driver.open_loop([session(0, 0.0, turns=3)]))
    assert [record.scheduled_s for record in driver.records] == [0.0, 1.0, 2.0]
    assert [len(history) for history in sender.histories] == [0, 2, 4]
    assert sender.histories[1] == [
        {"role": "user", "content": "question 0"},
        {"role": "assistant", "content": " word"},
    ]


def test_a_conversation_ends_with_its_first_failure():
    driver = Driver(ScriptedSender([ANSWER, Behaviour(status=500, num_tokens=0)]))
    run_virtual(driver.open_loop([session(0, 0.0, turns=3)]))
    assert [record.outcome for record in driver.records] == [Outcome.OK, Outcome.HTTP_5XX]


def test_no_more_are_open_than_allowed():
    driver = Driver(ScriptedSender([ANSWER]), max_open=3)
    highest = 0

    async def watched():
        nonlocal highest
        running = asyncio.create_task(driver.open_loop([session(n) for n in range(10)]))
        while not running.done():
            highest = max(highest, driver.num_open)
            await asyncio.sleep(0.1)

    run_virtual(watched())
    assert highest == 3
    assert [record.sent_s for record in driver.records] == pytest.approx(
        [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    )
    assert all(record.lag_s == pytest.approx(0.0) for record in driver.records)


def test_what_was_begun_is_kept_when_the_run_is_stopped():
    driver = Driver(ScriptedSender([Behaviour(ttft_s=1.0, gap_s=1.0, num_tokens=4)]))

    async def stopped():
        running = asyncio.create_task(driver.open_loop([session(n, float(n)) for n in range(99)]))
        await asyncio.sleep(5.5)
        driver.stop()
        await running
        return now_s()

    assert run_virtual(stopped()) == pytest.approx(5.5)
    assert len(driver.records) == 6
    ended = [record.outcome for record in driver.records]
    assert ended == [Outcome.OK] * 2 + [Outcome.INTERRUPTED] * 4
    assert len(driver.records[3].chunks) == 2
    assert driver.num_open == 0


def test_a_run_that_is_stopped_before_it_begins_sends_nothing():
    for play in (
        lambda driver: driver.open_loop([session(0)]),
        lambda driver: driver.closed_loop([session(0, None)], 1, None),
    ):
        driver = Driver(ScriptedSender([ANSWER]))
        driver.stop()
        run_virtual(play(driver))
        assert driver.records == []


def test_a_pause_of_the_loop_counts_for_every_moment_in_it():
    async def paused():
        async with watch() as vitals:
            await asyncio.sleep(0.5)
            asyncio.get_running_loop().virtual.now_s += 0.4
            await asyncio.sleep(0.1)
        return vitals

    vitals = run_virtual(paused())
    assert vitals.wall_s == pytest.approx(1.0)
    late = [lag_s for lag_s in vitals.loop_lag_s if lag_s > 0.005]
    assert len(vitals.loop_lag_s) == pytest.approx(100, abs=2)
    assert len(late) == pytest.approx(40, abs=2) and max(late) == pytest.approx(0.4, abs=0.011)


def test_a_mistake_of_the_sender_is_not_swallowed():
    async def broken(planned, history, record):
        raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        run_virtual(Driver(broken).open_loop([session(0)]))
