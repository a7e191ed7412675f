"""The formulas against exact enumeration, and against figures that the literature gives."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from cluster.bench.formulas import expected_tokens, expected_tokens_by_depth, speed_up


def enumerated_tokens(acceptance: list[Fraction]) -> Fraction:
    """Over every pattern of drafts that would be accepted: those before the first refusal, and
    the LLM's own token."""
    total = Fraction(0)
    for pattern in itertools.product((True, False), repeat=len(acceptance)):
        probability = Fraction(1)
        for right, rate in zip(pattern, acceptance, strict=True):
            probability *= rate if right else 1 - rate
        accepted = len(list(itertools.takewhile(bool, pattern)))
        total += probability * (accepted + 1)
    return total


@pytest.mark.parametrize("gamma", range(7))
@pytest.mark.parametrize("alpha", [Fraction(0), Fraction(1, 3), Fraction(4, 5), Fraction(1)])
def test_one_rate_is_the_enumeration(alpha: Fraction, gamma: int) -> None:
    exact = float(enumerated_tokens([alpha] * gamma))
    assert expected_tokens(float(alpha), gamma) == pytest.approx(exact, rel=1e-14)
    assert expected_tokens_by_depth([float(alpha)] * gamma) == pytest.approx(exact, rel=1e-14)


def test_a_rate_for_each_depth_is_the_enumeration() -> None:
    rates = [Fraction(9, 10), Fraction(1, 2), Fraction(0), Fraction(7, 8)]
    for depth in range(len(rates) + 1):
        exact = float(enumerated_tokens(rates[:depth]))
        found = expected_tokens_by_depth([float(rate) for rate in rates[:depth]])
        assert found == pytest.approx(exact, rel=1e-14)


def test_published_figures() -> None:
    # Leviathan et al., table 1 (c = 0): alpha 0.8, gamma 5 runs 3.69 times as fast.
    assert round(speed_up(expected_tokens(0.8, 5), 0.0), 2) == 3.69
    # alpha 0.75, gamma 4, one draft at 0.05 of the LLM's step.
    assert round(expected_tokens(0.75, 4), 2) == 3.05
    assert round(speed_up(expected_tokens(0.75, 4), 4 * 0.05), 2) == 2.54


def test_one_draft_pays_if_it_is_accepted_more_often_than_it_costs() -> None:
    # Corollary 3.9: at least (1 + alpha) / (1 + c) with gamma = 1.
    assert speed_up(expected_tokens(0.3, 1), 0.2) == pytest.approx(1.3 / 1.2)
    assert speed_up(expected_tokens(0.2, 1), 0.3) < 1.0


def test_a_dearer_step_and_a_fixed_cost() -> None:
    # In seconds: a plain token 10 + 2, a drafted step 3 + 15 + 2 for 2.5 tokens.
    assert speed_up(2.5, 0.3, 1.5, 0.2) == pytest.approx(12 / ((3 + 15 + 2) / 2.5))
    assert speed_up(1.0, 0.0, 1.0, 0.7) == 1.0


def test_uneven_rates_bring_fewer_tokens_than_their_mean_promises() -> None:
    # Hard places at every third depth: what one rate for all averages away.
    rates = [0.2, 0.95, 0.95] * 2
    reached = [1.0, *itertools.accumulate(rates, lambda a, b: a * b)]
    tried, accepted = sum(reached[:-1]), sum(reached[1:])
    assert expected_tokens_by_depth(rates) == pytest.approx(1.0 + accepted)
    assert expected_tokens(sum(rates) / 6, 6) > expected_tokens_by_depth(rates)
    assert accepted / tried < 1.0
