"""A drafter is asked for the requests to which it adds more than its time is worth."""

from __future__ import annotations

import random

import pytest

from actors.request_manager.budget import AdaptiveBudget, FixedBudget
from actors.request_manager.draft_gain import (
    FIRST_GAIN,
    LEVELS,
    PATIENCE,
    DraftGain,
    Share,
    share_of,
)
from actors.request_manager.drafter_worth import StepOutcome
from actors.request_manager.merge import MergedTree, merge
from actors.request_manager.ports import Draft
from actors.tree import TokenTree

LOW, HIGH = 0.1, 2.0  # promises


def merged(**paths: list[list[int]]) -> MergedTree:
    trees = {name: TokenTree.from_paths(own) for name, own in paths.items()}
    drafts = {name: Draft(tree, (0.5,) * len(tree)) for name, tree in trees.items()}
    return merge(drafts, 100).merged


def nodes(drafts: MergedTree, path: list[int]) -> list[int]:
    found, parent = [], -1
    for token in path:
        node = drafts.tree.child(parent, token)
        assert node is not None
        found.append(node)
        parent = node
    return found


@pytest.mark.parametrize(
    ("accepted", "gain"),
    [([], 0), ([1], 0), ([1, 2], 0), ([1, 2, 3], 1), ([1, 4], 1), ([5], 1), ([5, 6], 2)],
)
def test_gain_is_what_nobody_else_had_proposed(accepted: list[int], gain: int) -> None:
    drafts = merged(ssm=[[1, 2, 3], [1, 4], [5, 6]], lookup=[[1, 2, 9]])
    assert share_of("ssm", drafts, nodes(drafts, accepted)) == Share(4, gain)


def test_what_hangs_below_a_gain_is_a_gain() -> None:
    """Without the first node the others' node below it could not have been reached."""
    drafts = merged(ssm=[[1, 2]], lookup=[[7]])
    drafts = MergedTree(
        drafts.tree,
        tuple(
            who if drafts.tree.token_ids[node] != 2 else (*who, who[0]._replace(drafter="lookup"))
            for node, who in enumerate(drafts.proposals)
        ),
        drafts.acceptance,
    )
    assert share_of("ssm", drafts, nodes(drafts, [1, 2])).num_accepted == 2


def learnt(low: float, high: float, seed: int = 0) -> DraftGain:
    """After many steps whose gains are on average so large where little or much is promised."""
    gains, chance = DraftGain(), random.Random(seed)
    for _ in range(500):
        gains.observe("ssm", LOW, float(chance.random() < low))
        gains.observe("ssm", HIGH, float(chance.random() < high))
    return gains


def asks(gains: DraftGain, promise: float, price: float, drafter: str = "ssm") -> bool:
    """For a single request."""
    return bool(gains.choose(drafter, {1: promise}, lambda count: price))


def test_it_is_asked_where_it_adds_most() -> None:
    gains = learnt(low=0.8, high=0.1)
    assert asks(gains, LOW, 0.4)
    assert not asks(gains, HIGH, 0.4)
    assert asks(gains, HIGH, FIRST_GAIN / 2, "another")


def test_of_several_requests_those_are_chosen_that_pay() -> None:
    """The first one costs 0.5 tokens, each further one 0.2."""
    gains = learnt(low=0.8, high=0.1)
    promises = {1: HIGH, 2: LOW, 3: HIGH, 4: LOW}

    def price(count: int) -> float:
        return 0.3 + 0.2 * count

    assert gains.choose("ssm", promises, price) == {2, 4}
    assert gains.choose("ssm", promises, lambda count: 0.05 * count) == {1, 2, 3, 4}
    assert gains.choose("ssm", promises, lambda count: 2.0) == set()
    assert gains.choose("ssm", {}, price) == set()


def test_one_that_is_left_out_is_tried_again() -> None:
    gains = learnt(low=0.8, high=0.1)
    asked = [asks(gains, HIGH, 0.4) for _ in range(3 * PATIENCE)]
    tried = [index for index, one in enumerate(asked, start=1) if one]
    assert tried == [PATIENCE, 2 * PATIENCE, 3 * PATIENCE]


def test_requests_that_never_pay_are_tried_again_beside_others_that_do() -> None:
    gains = learnt(low=0.8, high=0.1)
    promises = {1: LOW, 2: HIGH}
    chosen = [gains.choose("ssm", promises, lambda count: 0.3 * count) for _ in range(PATIENCE)]
    assert chosen == [{1}] * (PATIENCE - 1) + [{1, 2}]


def test_it_follows_the_texts() -> None:
    gains = learnt(low=0.8, high=0.1)
    for _ in range(100):
        gains.observe("ssm", HIGH, 1.0)
    assert asks(gains, HIGH, 0.4)


def test_every_promise_has_its_level() -> None:
    gains = DraftGain()
    for index, level in enumerate((0.0, *LEVELS)):
        for _ in range(300):
            gains.observe("ssm", level, float(index % 2))
    paying = [asks(gains, level, 0.5) for level in (0.0, *LEVELS)]
    assert paying == [bool(index % 2) for index in range(len(paying))]


@pytest.mark.parametrize(("draft_s", "asked"), [(2e-3, True), (8e-3, False)])
def test_the_price_is_what_the_time_would_bring(draft_s: float, asked: bool) -> None:
    """100 tokens a second: 2 ms are worth 0.2 tokens, 8 ms 0.8; the drafter adds half a token."""
    budget = AdaptiveBudget()
    for step in range(400):
        num_committed = 2 + step % 2
        total_s = num_committed * 10e-3
        budget.observe(
            StepOutcome(
                2,
                2,
                0,
                num_committed,
                total_s - draft_s,
                total_s,
                asking_s={"ssm": draft_s},
                considered=("ssm",),
                answered={"ssm": 1},
            )
        )
        budget.observe_share("ssm", LOW, Share(0, step % 2), 2)
    assert budget.asks("ssm", {1: LOW}, 2) == ({1} if asked else set())
    assert budget.asks("ssm", {1: LOW}, 1) == {1}
    assert FixedBudget().asks("ssm", {1: LOW}, 2) == {1}


def test_a_batch_comes_back_after_a_burst_of_slow_answers() -> None:
    """16 requests; asking takes 4 ms and 0.3 ms for each, but 200 ms at first."""
    budget, chance = AdaptiveBudget(), random.Random(0)
    asked_late = 0
    for step in range(4000):
        asked = len(budget.asks("ssm", dict.fromkeys(range(16), LOW), 16))
        gain = sum(chance.random() < 0.7 for _ in range(asked))
        draft_s = (4e-3 + 0.3e-3 * asked if step >= 30 else 0.2) if asked else 0.0
        budget.observe(
            StepOutcome(
                16,
                16 + 4 * asked,
                4 * asked,
                16 + gain,
                30e-3,
                30e-3 + draft_s,
                asking_s={"ssm": draft_s},
                considered=("ssm",),
                answered={"ssm": asked} if asked else {},
            )
        )
        for request in range(asked):
            budget.observe_share("ssm", LOW, Share(0, request < gain), 16)
        asked_late += asked if step >= 2000 else 0
    assert asked_late > 16 * 1900


@pytest.mark.parametrize(("num_nodes", "asked"), [(0, True), (16, False)])
def test_nodes_that_the_llm_runs_for_it_cost_time_too(num_nodes: int, asked: bool) -> None:
    """About 90 tokens a second; asking is worth 0.26 and 16 nodes 0.4; half a token is added."""
    budget, chance = AdaptiveBudget(), random.Random(0)
    for step in range(1000):
        nodes = chance.randrange(40)
        step_s = 18e-3 + 0.25e-3 * nodes
        budget.observe(
            StepOutcome(
                2,
                2 + nodes,
                nodes,
                2 + step % 2,
                step_s,
                step_s + 3e-3,
                asking_s={"ssm": 3e-3},
                considered=("ssm",),
                answered={"ssm": 1},
            )
        )
        budget.observe_share("ssm", LOW, Share(num_nodes, step % 2), 2)
    assert budget.asks("ssm", {1: LOW}, 2) == ({1} if asked else set())
