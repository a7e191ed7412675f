"""The budget takes nodes exactly as long as they pay."""

from __future__ import annotations

import random

import pytest

from actors.request_manager.budget import Acceptance, AdaptiveBudget, Bar, FixedBudget
from actors.request_manager.drafter_worth import StepOutcome
from actors.request_manager.merge import MergedTree, merge
from actors.request_manager.ports import Draft
from actors.tree import CONTEXT, TokenTree
from actors.verification import Rule


def tree(*scores: float, width: int = 1) -> MergedTree:
    """A chain with these conditional scores, or a fan of roots."""
    ids = TokenTree.chain(range(len(scores))) if width == 1 else None
    shape = ids or TokenTree(tuple(range(len(scores))), (-1,) * len(scores))
    return merge({"d": Draft(shape, scores)}, 1000).merged


def trained(seconds_per_step: float, seconds_per_token: float) -> AdaptiveBudget:
    budget = AdaptiveBudget()
    chance = random.Random(0)
    for _ in range(400):
        tokens = chance.randrange(1, 40)
        seconds = seconds_per_step + seconds_per_token * tokens
        budget.observe(StepOutcome(1, tokens, 0, 1, seconds, seconds))
    return budget


def test_step_cost_learns_a_line() -> None:
    cost = trained(10e-3, 0.4e-3).cost
    assert cost.seconds_per_token == pytest.approx(0.4e-3, rel=0.05)
    assert cost.seconds(20) == pytest.approx(18e-3, rel=0.05)


def test_step_cost_follows_the_machine_and_forgives_a_hiccup() -> None:
    cost = trained(10e-3, 0.4e-3).cost
    cost.observe(10, 5.0)
    assert cost.seconds(10) < 20e-3
    for tokens in list(range(1, 40)) * 10:
        cost.observe(tokens, 2 * (10e-3 + 0.4e-3 * tokens))
    assert cost.seconds(20) == pytest.approx(36e-3, rel=0.05)


@pytest.mark.parametrize("num_tokens", [1, 20, 39])
def test_one_hiccup_does_not_spoil_the_estimate(num_tokens: int) -> None:
    """A step that took ten times as long, of the least size, the mean, and the greatest."""
    sizes = (1, 10, 20, 39)
    truth = [10e-3 + 0.4e-3 * size for size in sizes]
    cost = trained(10e-3, 0.4e-3).cost
    cost.observe(num_tokens, 10 * cost.seconds(num_tokens))
    assert [cost.seconds(size) for size in sizes] == pytest.approx(truth, rel=0.2)
    for tokens in list(range(1, 40)) * 2:
        cost.observe(tokens, 10e-3 + 0.4e-3 * tokens)
    assert [cost.seconds(size) for size in sizes] == pytest.approx(truth, rel=0.05)


def test_probable_nodes_are_taken_and_poor_ones_are_not() -> None:
    budget = trained(10e-3, 0.3e-3)
    chosen = budget.select(
        {1: tree(0.9, 0.9, 0.9), 2: tree(0.01, 0.9)}, num_draws=2, num_tokens=2, room=100
    )
    assert {key: len(value) for key, value in chosen.items()} == {1: 3}


def test_more_is_taken_where_a_step_is_dear() -> None:
    scores = [0.7] * 12
    sizes = [
        len(trained(step, 1e-3).select({1: tree(*scores)}, 1, 1, 100).get(1, MergedTree()))
        for step in (1e-3, 10e-3, 100e-3)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2]


def test_nothing_is_taken_where_tokens_cost_as_much_as_steps() -> None:
    budget = trained(0.0, 1e-3)
    assert (
        budget.select({n: tree(0.6) for n in range(8)}, num_draws=8, num_tokens=8, room=100) == {}
    )


def test_time_beside_the_llm_makes_more_nodes_worth_it() -> None:
    scores = [0.7] * 12

    def taken(beside_s: float) -> int:
        budget = AdaptiveBudget()
        for tokens in list(range(1, 40)) * 10:
            step_s = 5e-3 + 1e-3 * tokens
            budget.observe(StepOutcome(1, tokens, 0, 1, step_s, step_s + beside_s))
        return len(budget.select({1: tree(*scores)}, 1, 1, 100)[1])

    assert taken(0.0) < taken(20e-3)


@pytest.mark.parametrize("num_draws", [1, 4, 16])
def test_no_node_below_the_least_probability_is_ever_taken(num_draws: int) -> None:
    chance = random.Random(num_draws)
    for _ in range(50):
        budget = trained(chance.uniform(1e-3, 20e-3), chance.uniform(1e-4, 2e-3))
        scores = [chance.random() for _ in range(8)]
        chosen = budget.select({1: tree(*scores, width=8)}, num_draws, num_draws, 100)
        least = budget.bar(num_draws, num_draws).least_probability
        taken = chosen[1].path_scores if chosen else ()
        assert all(probability >= least for probability in taken)
    assert FixedBudget().bar(num_draws, num_draws) == Bar()


def test_a_second_is_worth_what_all_requests_commit_in_it() -> None:
    budget = AdaptiveBudget()
    assert budget.bar(2, 2).tokens_per_s == 0.0
    for _ in range(300):
        budget.observe(StepOutcome(2, 8, 6, 5, 20e-3, 25e-3))  # 5 tokens in 25 ms
        budget.observe(StepOutcome(1, 600, 0, 0, 0.3, 0.3))  # a prefill says nothing of it
    assert budget.bar(2, 2).tokens_per_s == pytest.approx(200.0)
    for _ in range(300):
        budget.observe(StepOutcome(1, 1, 0, 1, 20e-3, 20e-3))  # another size of batch
    assert budget.bar(2, 2).tokens_per_s == pytest.approx(200.0)
    assert budget.bar(1, 1).tokens_per_s == pytest.approx(50.0)
    for _ in range(300):
        budget.observe(StepOutcome(2, 2, 0, 2, 20e-3, 20e-3))
    assert budget.bar(2, 2).tokens_per_s == pytest.approx(100.0, rel=1e-3)


def test_choice_is_the_best_number_of_nodes() -> None:
    """Against brute force over every prefix of the nodes in order of probability."""
    chance = random.Random(1)
    for _ in range(50):
        budget = trained(chance.uniform(1e-3, 20e-3), chance.uniform(1e-4, 2e-3))
        trees = {n: tree(*(chance.random() for _ in range(6))) for n in range(3)}
        chosen = budget.select(trees, 3, 3, 100)
        order = sorted((p for t in trees.values() for p in t.path_scores), reverse=True)

        def rate(count: int, order=order, budget=budget) -> float:
            seconds = budget.cost.seconds(3) + count * budget.cost.seconds_per_token
            return (3 + sum(order[:count])) / seconds

        best = max(rate(count) for count in range(len(order) + 1))
        assert rate(sum(map(len, chosen.values()))) == pytest.approx(best)


def test_room_is_kept_to_and_what_is_kept_is_a_tree() -> None:
    for budget in (FixedBudget(), trained(1.0, 1e-6)):
        chosen = budget.select({1: tree(0.9, 0.9, 0.9), 2: tree(0.5, 0.4, width=2)}, 2, 2, 4)
        assert {key: len(value) for key, value in chosen.items()} == {1: 3, 2: 1}
        assert chosen[2].tree.token_ids == (0,)
        assert FixedBudget().select({1: tree(0.9)}, 1, 1, 0) == {}


def test_acceptance_moves_from_the_drafters_word_to_what_is_measured() -> None:
    acceptance = Acceptance()
    assert acceptance.probability("d", 0, 0.8) == pytest.approx(0.8)
    for turn in range(400):
        acceptance.observe("d", 0, 0.8, accepted=turn % 5 == 0)
    assert acceptance.probability("d", 0, 0.8) == pytest.approx(0.2, abs=0.05)
    assert acceptance.probability("other", 0, 0.8) == pytest.approx(0.8)
    assert acceptance.probability("d", 3, 0.8) == pytest.approx(0.8)


@pytest.mark.parametrize("budget", [trained(10e-3, 0.3e-3), FixedBudget()])
def test_weighed_drafts_are_taken_level_by_level(budget) -> None:
    """Whatever stands below: the first level is chosen as if it stood alone."""
    shape = TokenTree((0, 1, 2, 3, 4), (-1, -1, 0, 2, 3))
    for deep in (0.01, 1.0):
        scores = (0.8, 0.15, deep, deep, deep)
        weighed = merge({"d": Draft(shape, scores)}, 1000, rule=Rule.MSS).merged
        chosen = budget.select({1: weighed}, num_draws=1, num_tokens=1, room=2)[1]
        assert chosen.tree.token_ids == (0, 1)
        assert chosen.rule is Rule.MSS
    free = merge({"d": Draft(shape, scores)}, 1000).merged
    assert budget.select({1: free}, 1, 1, room=2)[1].tree.token_ids == (0, 2)


def wide_tree(chance: random.Random, depth: int = 4) -> MergedTree:
    """Of 340 nodes: four children each, of which the first is the likeliest by far."""
    first = chance.uniform(0.3, 0.8)
    scores = [first, 0.1, 0.05, 0.02]
    token_ids, parents, level = [], [], [CONTEXT]
    for _ in range(depth):
        inner = [parent for parent in level for _ in scores]
        level = list(range(len(parents), len(parents) + len(inner)))
        token_ids += [token for _ in range(len(inner) // 4) for token in range(4)]
        parents += inner
    draft = Draft(TokenTree(tuple(token_ids), tuple(parents)), tuple(scores * (len(parents) // 4)))
    return merge({"d": draft}, 1000).merged


@pytest.mark.parametrize(
    ("pass_s", "token_s", "fewest", "most"),
    [(0.02, 1e-3, 1, 7), (0.1, 1e-3, 7, 20), (5.0, 1e-3, 40, 340), (0.02, 5e-6, 40, 340)],
)
def test_trees_grow_as_far_as_a_pass_is_dear_and_stay_so(pass_s, token_s, fewest, most) -> None:
    """As where every pass streams the weights, though all steps become alike then."""
    budget = AdaptiveBudget()
    chance = random.Random(0)
    sizes = []
    for _ in range(200):
        chosen = budget.select({1: wide_tree(chance)}, 1, 1, 1000)
        sizes.append(sum(len(tree) for tree in chosen.values()))
        seconds = (pass_s + token_s * (1 + sizes[-1])) * chance.gauss(1.0, 0.03)
        budget.observe(StepOutcome(1, 1 + sizes[-1], sizes[-1], 2, seconds, seconds))
    assert fewest <= sum(sizes[-100:]) / 100 <= most
