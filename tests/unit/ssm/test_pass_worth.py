"""A pass is run while it should bring more than its time would."""

from __future__ import annotations

import pytest

from actors.ssm.pass_worth import FIRST_SHARE, PATIENCE, PassWorth


def learnt(gain: float, seconds: float, num_rows: int = 4) -> PassWorth:
    worth = PassWorth()
    for _ in range(500):
        worth.observe(1.0, gain, num_rows, seconds)
    return worth


def test_the_border_is_where_gain_and_time_are_even() -> None:
    """A pass of 1 ms at 100 tokens a second costs 0.1 tokens, and half of what it expands stays."""
    worth = learnt(gain=0.5, seconds=1e-3)
    assert worth.decide(0.21, 4, 100.0)
    assert not worth.decide(0.19, 4, 100.0)
    assert worth.decide(0.19, 4, 90.0)
    assert not worth.decide(0.21, 4, 110.0)


def test_sizes_cost_what_they_were_seen_to_cost() -> None:
    worth = learnt(gain=0.5, seconds=1e-3)
    for _ in range(500):
        worth.observe(1.0, 0.5, 30, 3e-3)
    assert worth.decide(0.4, 5, 100.0)
    assert not worth.decide(0.4, 20, 100.0)


def test_what_is_not_known_is_tried() -> None:
    assert PassWorth().decide(1e-6, 7, 1e6)
    assert learnt(0.5, 1.0).decide(1e-6, 64, 1e6)
    assert not learnt(0.5, 1.0).decide(1e-6, 4, 1e6)


def test_time_that_is_worth_nothing_costs_nothing() -> None:
    assert learnt(0.5, 1e3).decide(1e-9, 4, 0.0)


def test_a_stall_is_not_the_end() -> None:
    worth = learnt(gain=FIRST_SHARE, seconds=1e-3)
    worth.observe(1.0, FIRST_SHARE, 4, 0.5)
    assert worth.decide(0.25, 4, 100.0)


def test_passes_that_did_not_pay_are_tried_again() -> None:
    """The first one that was seen was far too slow."""
    worth = PassWorth()
    worth.observe(1.0, FIRST_SHARE, 4, 0.5)
    run = 0
    for _ in range(400 * PATIENCE):
        if worth.decide(0.5, 4, 100.0):
            worth.observe(0.5, 0.5 * FIRST_SHARE, 4, 1e-3)
            run += 1
    assert run > 100 * PATIENCE


def test_nodes_that_promise_nothing_grow_where_time_is_free() -> None:
    worth = learnt(0.5, 1e-3)
    assert worth.decide(0.0, 4, 0.0)
    worth.observe(0.0, 0.0, 4, 1e-3)
    assert worth.decide(0.3, 4, 100.0)


@pytest.mark.parametrize("gain", [0.05, 0.9])
def test_the_share_that_is_kept_is_learnt(gain: float) -> None:
    worth = learnt(gain, 1e-3)
    assert worth.decide(0.11 / gain, 4, 100.0)
    assert not worth.decide(0.09 / gain, 4, 100.0)
