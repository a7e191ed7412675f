"""A drafter is asked exactly as long as its answers save more time than they take."""

from __future__ import annotations

import random

import pytest

from actors.request_manager.drafter_worth import (
    ENOUGH_STEPS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    TRIAL_STEPS,
    DrafterWorth,
    StepOutcome,
)

STEP_S = 10e-3


class House:
    """Steps of 10 ms with a drafter that brings `gain` tokens in `cost` seconds more."""

    def __init__(self, num_draws: int = 1) -> None:
        self.worth = DrafterWorth()
        self.num_draws = num_draws
        self.chance = random.Random(0)

    def step(self, gain: float, cost: float, beside: float = 0.0, prefills: bool = False) -> bool:
        """One step; whether the drafter was asked. `beside` is another drafter's answer time."""
        asked = self.worth.pays("ssm", self.num_draws)
        self.worth.pays("lookup", self.num_draws)
        accepted = sum(self.chance.random() < gain / self.num_draws for _ in range(self.num_draws))
        answers = {"lookup": beside} | ({"ssm": beside + cost} if asked else {})
        waited = max(answers.values())
        outcome = StepOutcome(
            num_draws=self.num_draws,
            num_tokens=self.num_draws + 300 * prefills,
            num_draft_nodes=0,
            num_committed=self.num_draws + (accepted if asked else 0),
            step_s=STEP_S,
            total_s=STEP_S + waited,
            answer_s=answers,
            sole_accepted={"ssm": accepted} if asked else {},
        )
        self.worth.observe(outcome, 0.0)
        return asked

    def asked(self, steps: int, gain: float, cost: float, beside: float = 0.0) -> int:
        return sum(self.step(gain, cost, beside) for _ in range(steps))


@pytest.mark.parametrize("num_draws", [1, 8])
def test_a_drafter_that_pays_is_always_asked(num_draws: int) -> None:
    assert House(num_draws).asked(2000, 0.8 * num_draws, 2e-3) == 2000


def test_one_that_costs_more_than_it_brings_is_left_alone_and_tried_ever_less_often() -> None:
    house = House()
    assert house.asked(ENOUGH_STEPS, 0.1, 5e-3) == ENOUGH_STEPS
    pauses, pause, trials = [], 0, 0
    for _ in range(8000):
        if house.step(0.1, 5e-3):
            trials += 1
            if pause:
                pauses.append(pause)
            pause = 0
        else:
            pause += 1
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert max(pauses) == LONGEST_PAUSE
    # The first answer after a pause is no measure and does not count.
    assert trials <= (len(pauses) + 1) * (TRIAL_STEPS + 1)


def test_it_comes_back_when_it_pays_again() -> None:
    house = House()
    house.asked(400, 0.0, 5e-3)
    assert house.asked(8000, 0.9, 1e-3) > 5000
    assert house.asked(100, 0.9, 1e-3) == 100


def test_it_is_not_charged_for_what_the_others_take_anyway() -> None:
    assert House().asked(1000, 0.2, 0.5e-3, beside=20e-3) == 1000


def test_nodes_that_the_llm_checks_for_it_are_charged() -> None:
    worth = DrafterWorth()
    asked = 0
    for _ in range(200):
        if not worth.pays("ssm", 1):
            continue
        asked += 1
        worth.observe(
            StepOutcome(1, 21, 20, 1, 20e-3, 20e-3, {"ssm": 0.0}, {"ssm": 20}, {"ssm": 0}), 0.5e-3
        )
    assert asked == ENOUGH_STEPS


def test_sizes_of_batch_are_judged_apart() -> None:
    house = House(16)
    house.asked(200, 0.5, 9e-3)
    assert not house.worth.pays("ssm", 16)
    assert not house.worth.pays("ssm", 31)
    assert house.worth.pays("ssm", 15)
    assert house.worth.pays("ssm", 1)


def test_steps_that_prefill_say_nothing() -> None:
    house = House()
    for _ in range(500):
        assert house.step(0.0, 5e-3, prefills=True)
