"""What was learnt of a draft model is not held against the one that follows it."""

from __future__ import annotations

import pytest

from actors.request_manager.budget import Acceptance, AdaptiveBudget, FixedBudget
from actors.request_manager.config import SpeculationConfig
from actors.request_manager.draft_gain import Share
from actors.request_manager.drafter_worth import StepKind, StepOutcome
from actors.request_manager.guessing import Guessing

BOTH = frozenset({"ssm-0", "ssm-1"})
KIND, OTHER_KIND = StepKind(2, drafters=BOTH), StepKind(2, drafters=frozenset({"ssm-1"}))
PROMISE = 0.0


def test_scores_are_believed_again() -> None:
    acceptance = Acceptance()
    for drafter in BOTH:
        for _ in range(100):
            acceptance.observe(drafter, 0, 0.9, accepted=False)
    known = acceptance.probability("ssm-1", 0, 0.9)
    acceptance.begin_anew("ssm-0")
    assert acceptance.probability("ssm-0", 0, 0.9) == pytest.approx(0.9)
    assert acceptance.probability("ssm-1", 0, 0.9) == known < 0.1


def bored() -> AdaptiveBudget:
    """It has found that neither drafter brings anything, and that asking takes long."""
    budget = AdaptiveBudget()
    for kind in (KIND, OTHER_KIND):
        for _ in range(400):
            asked = [name for name in sorted(kind.drafters) if budget.considers(name, kind)]
            seconds = 10e-3 * (1 + len(asked))
            budget.observe(
                StepOutcome(
                    2,
                    2 + 4 * len(asked),
                    4 * len(asked),
                    2,
                    10e-3,
                    seconds,
                    allowed=kind.drafters,
                    asking_s=dict.fromkeys(asked, 10e-3),
                    considered=asked,
                    answered=dict.fromkeys(asked, 2),
                    drafted=dict.fromkeys(asked, 4),
                )
            )
    for name in BOTH:
        for _ in range(400):
            budget.observe_share(name, PROMISE, Share(4, 0), 2)
    return budget


def test_a_drafter_that_did_not_pay_is_asked_again() -> None:
    budget = bored()
    assert not any(budget.considers(name, KIND) for name in BOTH)
    assert not budget.considers("ssm-1", OTHER_KIND)
    assert budget.asks("ssm-0", {1: PROMISE, 2: PROMISE}, 2) == set()
    budget.begin_anew("ssm-0")
    assert budget.considers("ssm-0", KIND)
    assert budget.asks("ssm-0", {1: PROMISE, 2: PROMISE}, 2) == {1, 2}
    assert not budget.considers("ssm-1", OTHER_KIND), "steps without it have not changed"
    assert budget.asks("ssm-1", {1: PROMISE, 2: PROMISE}, 2) == set()


def test_a_fixed_budget_asks_as_before() -> None:
    budget = FixedBudget()
    budget.begin_anew("ssm-0")
    assert budget.considers("ssm-0", KIND)


def test_all_that_the_manager_has_learnt_goes() -> None:
    guessing = Guessing(SpeculationConfig(), [], 100)
    for drafter in BOTH:
        guessing.acceptance.observe(drafter, 0, 0.9, accepted=False)
        guessing._drafting.note_rejected([(drafter, "odd")])
    guessing.begin_anew("ssm-0")
    assert guessing.acceptance.probability("ssm-0", 0, 0.9) == pytest.approx(0.9)
    assert guessing._drafting.failures == {"ssm-1": 1}
