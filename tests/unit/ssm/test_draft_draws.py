"""What draft models draw for rules that weigh it: each as its own distribution says, and apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from actors.noise import NoiseSource
from actors.sampling import SamplingParams
from actors.ssm.draft_draws import DraftDrawer
from actors.verification import Rule

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
CUT_IDS = np.array([3, 5, 6, 9])
NUM_SEEDS = 4000


def first_draws(rule: Rule, model: int) -> np.ndarray:
    """[seeds] the token that each seed draws first."""
    drawer = DraftDrawer(CUT_IDS, NoiseSource(10, CUT_IDS), model)
    drawn = [
        drawer.draw(rule, LOGITS, SamplingParams(seed=seed), 7, 2) for seed in range(NUM_SEEDS)
    ]
    return np.array([one.token_ids[0] for one in drawn])


@pytest.mark.parametrize("rule", [Rule.MSS, Rule.SPECTR])
def test_models_draw_from_their_distribution_and_agree_no_more_often_than_by_chance(
    rule: Rule,
) -> None:
    weights = np.exp(LOGITS)
    draws = [first_draws(rule, model) for model in range(3)]
    for drawn in draws:
        shares = [(drawn == token).mean() for token in CUT_IDS]
        assert shares == pytest.approx(weights.tolist(), abs=4 * math.sqrt(0.25 / NUM_SEEDS))
    by_chance = float((weights**2).sum())
    for one, other in ((0, 1), (0, 2), (1, 2)):
        agreement = (draws[one] == draws[other]).mean()
        assert agreement == pytest.approx(by_chance, abs=4 * math.sqrt(0.25 / NUM_SEEDS))
    assert (first_draws(rule, 1) == draws[1]).all()
