"""A drafter is asked exactly as long as steps with it bring more tokens per second."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection

import pytest

from actors.request_manager.drafter_worth import (
    FIRST_LOOK,
    FIRST_RUN,
    LONGEST_RUN,
    LONGEST_TRIAL,
    MAX_CATCH_UP_STEPS,
    MAX_KINDS,
    MAX_TRIAL_SHARE,
    TRIAL_STEPS,
    DrafterWorth,
    StepKind,
    StepOutcome,
)

STEP_S = 10e-3
SSM = frozenset({"ssm"})


class House:
    """Steps of 10 ms with a drafter that brings `gain` tokens in `cost` seconds more."""

    def __init__(self, num_draws: int = 1, samples: bool = False) -> None:
        self.worth = DrafterWorth()
        self.num_draws = num_draws
        self.samples = samples
        self.chance = random.Random(0)

    def step(self, gain: float, cost: float, *, prefills: bool = False, nodes: int = 4) -> bool:
        """One step; whether the drafter was asked."""
        asked = self.worth.pays("ssm", StepKind(self.num_draws, self.samples, SSM))
        share = gain / self.num_draws
        accepted = sum(self.chance.random() < share for _ in range(self.num_draws))
        self.worth.observe(
            StepOutcome(
                num_draws=self.num_draws,
                num_tokens=self.num_draws + 300 * prefills + nodes * asked,
                num_draft_nodes=nodes * asked,
                num_committed=self.num_draws + accepted * asked,
                step_s=STEP_S,
                total_s=STEP_S + cost * asked,
                samples=self.samples,
                allowed=SSM,
                considered=("ssm",) if asked else (),
                drafted={"ssm": nodes} if asked and nodes else {},
            )
        )
        return asked

    def asked(self, steps: int, gain: float, cost: float) -> int:
        return sum(self.step(gain, cost) for _ in range(steps))

    def runs(self, steps: int, gain: float, cost: float) -> list[tuple[bool, int]]:
        """Runs of steps with and without the drafter."""
        found: list[tuple[bool, int]] = []
        for _ in range(steps):
            asked = self.step(gain, cost)
            before = found.pop() if found and found[-1][0] == asked else (asked, 0)
            found.append((asked, before[1] + 1))
        return found


@pytest.mark.parametrize("num_draws", [1, 8])
def test_one_that_pays_is_asked_but_for_short_trials_ever_less_often(num_draws: int) -> None:
    runs = House(num_draws).runs(8000, 0.8 * num_draws, 2e-3)
    assert {size for asked, size in runs[:-1] if not asked} == {TRIAL_STEPS}
    with_it = [size for asked, size in runs[:-1] if asked]
    assert with_it[0] == FIRST_LOOK
    assert FIRST_RUN <= with_it[1] < 2 * FIRST_RUN  # the first trial is made up for
    assert with_it[2:4] == [2 * FIRST_RUN, 4 * FIRST_RUN]
    assert max(with_it) == LONGEST_RUN


@pytest.mark.parametrize("num_draws", [1, 8])
def test_one_that_does_not_is_only_tried(num_draws: int) -> None:
    runs = House(num_draws).runs(8000, 0.1 * num_draws, 5e-3)
    assert runs[0] == (True, FIRST_LOOK)
    assert {size for asked, size in runs[1:-1] if asked} <= {TRIAL_STEPS, 2 * TRIAL_STEPS}
    assert max(size for _, size in runs) == LONGEST_RUN


def test_it_comes_back_and_goes_as_things_change() -> None:
    house = House()
    house.asked(3000, 0.0, 5e-3)
    assert house.asked(6000, 0.9, 1e-3) > 4000
    assert house.asked(6000, 0.0, 5e-3) < 2000


def test_what_a_pause_leaves_to_catch_up_with_is_not_held_against_it() -> None:
    house = House()
    house.asked(400, 0.0, 5e-3)
    while not house.worth.pays("ssm", StepKind(1, False, SSM)):
        house.step(0.0, 5e-3)
    for _ in range(MAX_CATCH_UP_STEPS - 1):
        assert house.step(0.0, 90e-3, nodes=0)
    assert house.asked(TRIAL_STEPS, 1.0, 0.0) == TRIAL_STEPS


def test_sizes_of_batch_are_judged_apart() -> None:
    house = House(16)
    house.asked(200, 0.5, 9e-3)
    assert not house.worth.pays("ssm", StepKind(16, False, SSM))
    assert not house.worth.pays("ssm", StepKind(31, False, SSM))
    assert house.worth.pays("ssm", StepKind(15, False, SSM))
    assert house.worth.pays("ssm", StepKind(1, False, SSM))


def test_greedy_and_sampled_draws_are_judged_apart() -> None:
    house = House(samples=True)
    house.asked(1000, 0.1, 9e-3)
    assert not house.worth.pays("ssm", StepKind(1, True, SSM))
    assert house.worth.pays("ssm", StepKind(1, False, SSM))


@pytest.mark.parametrize(("loss", "asks"), [(-0.05, True), (-0.01, True), (0.1, False)])
def test_a_tie_goes_to_the_drafter(loss: float, asks: bool) -> None:
    """With half a token more a step, at a cost that makes steps so much slower in all."""
    house = House()
    asked = house.asked(20_000, 0.5, STEP_S * (1.5 * (1.0 + loss) - 1.0))
    assert (asked > 14_000) == asks
    assert asks or asked < 6_000


def test_a_trial_goes_on_while_it_is_doubtful() -> None:
    runs = House().runs(20_000, 0.5, STEP_S * (1.5 * 1.03 - 1.0))
    trials = [size for asked, size in runs[1:-1] if size not in (FIRST_RUN, LONGEST_RUN)]
    assert LONGEST_TRIAL in trials


def test_what_trials_cost_is_made_up_for() -> None:
    """A draft model that never answers in time costs five steps' time, and has texts to catch up
    with first."""
    house = House()
    asked = [house.step(0.0, 5 * STEP_S, nodes=0) for _ in range(40_000)][10_000:]
    lost_s = sum(asked) * 5 * STEP_S
    assert lost_s < 0.03 * (len(asked) * STEP_S + lost_s)
    assert any(asked)


def test_steps_that_prefill_say_nothing() -> None:
    house = House()
    for _ in range(3 * FIRST_RUN):
        assert house.step(0.0, 5e-3, prefills=True)


class Pool:
    """Steps of 10 ms with drafters that are asked side by side: (gain, cost) of each."""

    def __init__(self, **drafters: tuple[float, float]) -> None:
        self.worth = DrafterWorth()
        self.drafters = drafters
        self.chance = random.Random(1)
        self.seconds = 0.0

    def asked(self, num_steps: int, allowed: Collection[str] | None = None) -> dict[str, float]:
        """The share of steps in which each was asked."""
        counts = Counter[str]()
        kind = StepKind(1, drafters=frozenset(self.drafters if allowed is None else allowed))
        for _ in range(num_steps):
            asked = {name for name in kind.drafters if self.worth.pays(name, kind)}
            counts.update(asked)
            gain = sum(self.chance.random() < self.drafters[name][0] for name in asked)
            cost = max((self.drafters[name][1] for name in asked), default=0.0)
            self.seconds += STEP_S + cost
            self.worth.observe(
                StepOutcome(
                    num_draws=1,
                    num_tokens=1 + 2 * len(asked),
                    num_draft_nodes=2 * len(asked),
                    num_committed=1 + gain,
                    step_s=STEP_S,
                    total_s=STEP_S + cost,
                    allowed=kind.drafters,
                    considered=asked,
                    drafted=dict.fromkeys(asked, 2),
                )
            )
        return {name: counts[name] / num_steps for name in self.drafters}


@pytest.mark.parametrize("bad", [(0.0, 4e-3), (0.05, 8e-3)])
def test_a_bad_one_neither_rides_on_a_good_one_nor_takes_it_down(bad: tuple[float, float]) -> None:
    pool = Pool(good=(0.7, 2e-3), bad=bad)
    pool.asked(1000)
    shares = pool.asked(8000)
    assert shares["good"] > 0.9
    assert shares["bad"] < 0.1


def test_all_that_pay_are_asked_and_only_one_is_on_trial() -> None:
    pool = Pool(one=(0.7, 2e-3), two=(0.5, 2e-3), three=(0.6, 2e-3))
    shares = pool.asked(6000)
    assert min(shares.values()) > 0.9


def test_what_requests_allow_is_judged_apart() -> None:
    """Together they are of no use: one guesses what the other does."""
    pool = Pool(one=(0.0, 4e-3), two=(0.0, 4e-3))
    pool.asked(3000)
    pool.drafters["two"] = (0.9, 1e-3)
    assert pool.asked(6000, allowed=("two",))["two"] > 0.9


def test_all_trials_together_cost_a_small_share_of_the_time() -> None:
    """Three that are as dear as they are useless."""
    pool = Pool(one=(0.0, 9e-3), two=(0.0, 9e-3), three=(0.0, 9e-3))
    pool.asked(2000)
    before_s = pool.seconds
    pool.asked(20_000)
    lost_share = (pool.seconds - before_s) / (20_000 * STEP_S) - 1.0
    assert 0.0 < lost_share < 1.2 * MAX_TRIAL_SHARE


def test_those_that_only_together_cost_what_they_bring_are_all_left_out() -> None:
    """They answer side by side: without one of them, the others are no faster."""
    pool = Pool(one=(0.1, 9e-3), two=(0.1, 9e-3), three=(0.1, 9e-3))
    pool.asked(2000)
    assert max(pool.asked(8000).values()) < 0.05


def test_no_more_kinds_of_step_are_remembered_than_there_is_room_for() -> None:
    house = House()
    house.asked(200, 0.0, 9e-3)
    assert not house.worth.pays("ssm", StepKind(1, False, SSM))
    for number in range(MAX_KINDS):
        name = f"ssm-{number}"
        assert house.worth.pays(name, StepKind(1, False, frozenset({name})))
    assert house.worth.pays("ssm", StepKind(1, False, SSM)), "it has been forgotten"
