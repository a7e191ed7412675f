"""Lossless rules leave the LLM's distribution as it is, to the last digits; `typical` does not.

Exact enumeration over small vocabularies. Each known mistake must fail the same check.
"""

from __future__ import annotations

import numpy as np
import pytest
from enumeration import (
    below,
    best,
    draws_of,
    mean_acceptance,
    one_token,
    outcome,
    random_distribution,
    total_variation,
    two_tokens,
    with_replacement,
    without_replacement,
)

from actors.llm.rules.k_sequential import KSequential
from actors.llm.rules.multi_step import MultiStep
from actors.llm.rules.plan import Below, Plan, Try
from actors.llm.rules.typical import Typical
from actors.logit_steps import kept_ids
from actors.sampling import SamplingParams
from actors.verification import Draws, normalized

MSS, SPECTR, TYPICAL = MultiStep().plan, KSequential().plan, Typical().plan
EXACT = 1e-12


def naive(target, below):
    """A draw of the LLM's own; a draft is right if it equals that."""
    return Plan((), target)


LOSSLESS = {
    "mss": (without_replacement, MSS),
    "mss, drawn independently": (with_replacement, None),
    "spectr": (with_replacement, SPECTR),
    "naive": (best, naive),
}


def independent_mss(target, below):
    """Drafts drawn with replacement are those of draft models that drew one each."""
    ones = [
        Draws((token,), drawn.support_ids, drawn.weights)
        for drawn in below.draws
        for token in drawn.token_ids
    ]
    return MSS(target, Below(below.children, ones))


def case_of(name):
    draw, planner = LOSSLESS[name]
    return draw, planner or independent_mss


def softmax(logits, sampling):
    """The distribution after temperature and truncation, as rank and draft model apply them."""
    weights = np.zeros(len(logits))
    kept = kept_ids(logits, sampling)
    scaled = logits[kept] / sampling.temperature
    weights[kept] = np.exp(scaled - scaled.max())
    return normalized(weights)


# --------------------------------------------------------------------------- lossless rules


@pytest.mark.parametrize("name", LOSSLESS)
def test_one_token_is_the_llms(name):
    draw, planner = case_of(name)
    random = np.random.default_rng(1)
    for _ in range(60):
        size, num_drafters = int(random.integers(2, 6)), int(random.integers(0, 4))
        target = random_distribution(random, size)
        drafters = [
            (random_distribution(random, size), int(random.integers(1, 4)))
            for _ in range(num_drafters)
        ]
        drafters = [(q, min(k, np.count_nonzero(q))) for q, k in drafters]
        if np.prod([float(np.count_nonzero(q)) ** k for q, k in drafters]) > 1_000:
            continue
        output = one_token(target, drafters, draw, planner)
        assert total_variation(output, target) <= EXACT


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.3}])
def test_under_temperature_and_truncation(name, temperature, cut):
    draw, planner = case_of(name)
    random = np.random.default_rng(2)
    sampling = SamplingParams(temperature=temperature, **cut)
    for _ in range(4):
        target = softmax(random.normal(0, 2, 5).astype(np.float32), sampling)
        q = softmax(random.normal(0, 2, 5).astype(np.float32), sampling)
        output = one_token(target, [(q, min(3, np.count_nonzero(q)))], draw, planner)
        assert total_variation(output, target) <= EXACT


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("count", [1, 2])
def test_consecutive_tokens_over_a_tree_are_the_llms(name, count):
    draw, planner = case_of(name)
    for seed in range(4):
        output, targets = consecutive(seed, count, draw, planner)
        assert total_variation(output, targets[-1][:, np.newaxis] * targets[:-1]) <= EXACT


def consecutive(seed, count, draw, planner, **options):
    random = np.random.default_rng(seed)
    targets = np.array([random_distribution(random, 3) for _ in range(4)])
    drafts = random.dirichlet(np.ones(3), size=4)
    return two_tokens(targets, drafts, count, draw, planner, **options), targets


def test_a_child_may_be_left_out_of_the_tree_for_what_was_drawn_beside_it():
    output, targets = consecutive(
        3, 2, without_replacement, MSS, keep=lambda token, beside, beneath: token != 0
    )
    assert total_variation(output, targets[-1][:, np.newaxis] * targets[:-1]) <= EXACT


def test_a_child_may_not_be_left_out_for_what_was_drawn_below_it():
    output, targets = consecutive(
        3,
        1,
        without_replacement,
        MSS,
        keep=lambda token, beside, beneath: beneath[0].token_ids[0] != 0,
    )
    assert total_variation(output, targets[-1][:, np.newaxis] * targets[:-1]) > 1e-3


# ------------------------------------------------------------------------- how much they accept


def test_mss_accepts_no_less_than_naive():
    """Theorem 4.3 of SpecInfer; the same drafts for both."""
    random = np.random.default_rng(5)
    for _ in range(50):
        target, q = random_distribution(random, 5), random.dirichlet(np.ones(5))
        ours = mean_acceptance(target, [(q, 3)], without_replacement, MSS)
        hit = sum(
            chance * target[list(tokens)].sum() for tokens, chance in without_replacement(q, 3)
        )
        assert ours >= hit - EXACT


def test_one_draft_is_accepted_with_one_minus_total_variation():
    random = np.random.default_rng(6)
    for _ in range(50):
        target, q = random_distribution(random, 6), random_distribution(random, 6)
        for draw, planner in ((without_replacement, MSS), (with_replacement, SPECTR)):
            accepted = mean_acceptance(target, [(q, 1)], draw, planner)
            assert accepted == pytest.approx(1 - total_variation(target, q), abs=EXACT)


def test_spectr_accepts_at_least_what_its_paper_promises():
    """Theorem 1 of SpecTr: 1 - (1 - α)^k of k drafts is never missed by more than 1/e, where the
    best selection accepts at most Σ min(p, 1 - (1 - q)^k)."""
    random = np.random.default_rng(7)
    for _ in range(50):
        target, q = random_distribution(random, 4), random.dirichlet(np.ones(4))
        accepted = mean_acceptance(target, [(q, 3)], with_replacement, SPECTR)
        at_best = np.minimum(target, 1 - (1 - q) ** 3).sum()
        assert (1 - 1 / np.e) * at_best <= accepted + EXACT
        assert accepted <= at_best + EXACT


# ------------------------------------------------------------------------------- known mistakes


def pruned_by_probability(q, count):
    """Two drafts are drawn; the one that is more probable by q is kept."""
    for tokens, chance in without_replacement(q, 2):
        yield (max(tokens, key=lambda token: q[token]),), chance


def tried_once(target, proposed):
    """What two draft models both drew is tried for the first of them alone."""
    seen, draws = set(), []
    for drawn in proposed.draws:
        fresh = [token for token in drawn.token_ids if token not in seen]
        seen.update(drawn.token_ids)
        if fresh:
            draws.append(Draws(tuple(fresh), drawn.support_ids, drawn.weights))
    return MSS(target, Below(proposed.children, draws))


def drawn_twice_with_one_noise(target, proposed):
    """Two copies of a draft model whose draws always agree."""
    return MSS(target, Below(proposed.children, [proposed.draws[0], *proposed.draws]))


def resampled_from_target(target, proposed):
    return Plan(MSS(target, proposed).tries, target)


def by_argmax(target, proposed):
    """A draft is right if it is the LLM's most probable token."""
    top = int(np.argmax(target))
    return Plan(tuple(Try(top, 1.0) for token in proposed.children if token == top), target)


def reweighed(change):
    """MSS against other probabilities than those that were drawn from."""

    def planner(target, proposed):
        draws = [
            Draws(drawn.token_ids, drawn.support_ids, tuple(change(np.array(drawn.weights))))
            for drawn in proposed.draws
        ]
        return MSS(target, Below(proposed.children, draws))

    return planner


def bfloat16(weights):
    bits = weights.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).view(np.float32).astype(np.float64)


def truncated_target(target, proposed):
    """The LLM's distribution is looked at on the draft model's support alone."""
    inside = np.zeros(len(target))
    support = list(proposed.draws[0].support_ids)
    inside[support] = target[support]
    return MSS(normalized(inside), proposed) if inside.any() else MSS(target, proposed)


def repeated_gamma_one(target, proposed):
    """k-sequential selection with γ = 1, which takes more than there is."""
    drawn = proposed.draws[0]
    q = np.zeros(len(target))
    q[list(drawn.support_ids)] = drawn.probabilities
    tries = tuple(Try(token, min(1.0, target[token] / q[token])) for token in drawn.token_ids)
    rest = np.maximum(target - q, 0.0)
    return Plan(tries, normalized(rest) if rest.any() else target)


MISTAKES = {
    "top-k children under MSS": (best, MSS),
    "drawn children pruned by q": (pruned_by_probability, MSS),
    "two draft models' equal draws tried once": (without_replacement, tried_once),
    "two draft models that draw with one noise": (without_replacement, drawn_twice_with_one_noise),
    "resampling from p": (without_replacement, resampled_from_target),
    "accept by argmax under sampling": (without_replacement, by_argmax),
    "temperature forgotten on the draft": (without_replacement, reweighed(lambda q: q**2)),
    "bf16 q against fp32 p": (without_replacement, reweighed(bfloat16)),
    "truncated target": (without_replacement, truncated_target),
    "draws without replacement not renormalised": (without_replacement, independent_mss),
    "gamma = 1 for several drafts": (with_replacement, repeated_gamma_one),
}
TARGET = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
DRAFTERS = [
    (np.array([0.1, 0.5, 0.3, 0.1, 0.0]), 2),
    (np.array([0.6, 0.2, 0.0, 0.1, 0.1]), 1),
]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_known_mistake_is_found_out(name):
    draw, planner = MISTAKES[name]
    assert total_variation(one_token(TARGET, DRAFTERS, draw, planner), TARGET) > 1e-6


@pytest.mark.parametrize("name", LOSSLESS)
def test_where_the_mistakes_are_found_out_the_rules_hold(name):
    assert total_variation(one_token(TARGET, DRAFTERS, *case_of(name)), TARGET) <= EXACT


# ------------------------------------------------------------------------------------- typical


def test_typical_is_biased_and_by_how_much():
    """δ e^-H = 0.073 here: the LLM's four best are acceptable, and the best of two drafts is taken.

    Token 1 comes out unless token 0 was drafted, or 2 with 3.
    """
    least = Typical().least_probability(TARGET)
    assert least == pytest.approx(0.3 * np.exp(TARGET @ np.log(TARGET)))
    output = one_token(TARGET, DRAFTERS[:1], without_replacement, TYPICAL)
    with_0 = 0.1 + 0.5 * 0.1 / 0.5 + 0.3 * 0.1 / 0.7 + 0.1 * 0.1 / 0.9
    with_2_and_3 = 0.3 * 0.1 / 0.7 + 0.1 * 0.3 / 0.9
    expected = [with_0, 1 - with_0 - with_2_and_3, with_2_and_3, 0, 0]
    assert output == pytest.approx(expected, abs=EXACT)
    assert total_variation(output, TARGET) == pytest.approx(0.3698, abs=1e-4)


def test_typical_takes_the_most_probable_draft_and_else_draws():
    assert TYPICAL(TARGET, Below((4, 2, 1))) == Plan((Try(1, 1.0), Try(2, 1.0)), TARGET)
    assert TYPICAL(TARGET, Below((4,))).tries == ()


def test_typical_asks_less_where_the_llm_is_unsure():
    unsure, sure = np.full(100, 0.01), np.array([0.97, 0.03])
    assert Typical().least_probability(unsure) == pytest.approx(0.003)
    assert Typical().least_probability(sure) == 0.09


# ----------------------------------------------------------------- the lectures' own examples


UNIFORM = np.full(4, 0.25)


def of_two_models(first, second, planner):
    """The probability that some draft is accepted, over everything that they may draw."""
    return mean_acceptance(UNIFORM, [(first, 1), (second, 1)], without_replacement, planner)


def equality(target, proposed):
    """Naive sampling as tries: the share of the LLM's draws that some draft equals."""
    hit = float(target[list(proposed.children)].sum())
    return Plan((Try(proposed.children[0], hit),), target)


def test_slide_example_mss_0_8125_against_naive_0_4375():
    always_first = np.array([1.0, 0.0, 0.0, 0.0])
    assert of_two_models(always_first, UNIFORM, MSS) == pytest.approx(0.8125, abs=EXACT)
    assert of_two_models(always_first, UNIFORM, equality) == pytest.approx(0.4375, abs=EXACT)


def test_slide_example_with_the_second_model_at_the_second_token():
    always_first = np.array([1.0, 0.0, 0.0, 0.0])
    plan = MSS(UNIFORM, below([draws_of(always_first, [0]), draws_of(UNIFORM, [1])]))
    assert plan.tries == (Try(0, 0.25), Try(1, 1.0))


def test_exercise_3_one_position():
    target, q = np.array([0.6, 0.4]), np.array([0.5, 0.5])
    right = one_token(target, [(q, 1)], without_replacement, MSS)
    greedy = one_token(target, [(q, 1)], without_replacement, by_argmax)
    assert right == pytest.approx([0.6, 0.4], abs=EXACT)
    assert greedy == pytest.approx([0.8, 0.2], abs=EXACT)
    assert mean_acceptance(target, [(q, 1)], without_replacement, MSS) == pytest.approx(0.9)


def test_exercise_6_mss_1_against_naive_one_half():
    first = draws_of(np.array([0.5, 0.5, 0.0, 0.0]), [1])
    second = draws_of(UNIFORM, [2])
    plan = MSS(UNIFORM, below([first, second]))
    assert plan.tries == (Try(1, 0.5), Try(2, 1.0))
    assert 1 - np.prod([1 - one.acceptance for one in plan.tries]) == 1.0
    assert equality(UNIFORM, Below((1, 2))).tries[0].acceptance == 0.5


def test_exercise_7_the_best_token_as_a_draft_is_biased():
    target, q = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    output = one_token(target, [(q, 1)], best, MSS)
    assert output == pytest.approx([5 / 6, 1 / 6], abs=EXACT)
    assert one_token(target, [(q, 1)], without_replacement, MSS) == pytest.approx(target, abs=EXACT)


# -------------------------------------------------------------------------------------- coins


def test_coins_choose_among_the_tries():
    plan = Plan((Try(3, 0.5), Try(1, 0.25)), TARGET)
    assert plan.accepted([0.49, 0.9]) == 3
    assert plan.accepted([0.5, 0.2]) == 1
    assert plan.accepted([0.5, 0.25]) is None
    assert outcome(plan)[3] == pytest.approx(0.5 + 0.375 * TARGET[3])
