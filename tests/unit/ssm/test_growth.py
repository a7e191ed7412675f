"""Trees grow to what a search over all nodes would choose."""

from __future__ import annotations

import itertools
import random

import pytest

from actors.ssm.growth import BestFirst, Growth, Policy, Static
from actors.tree import CONTEXT
from actors.verification import Draws

BRANCHING = 4


def family(path: tuple[int, ...], count: int) -> list[tuple[int, float]]:
    """The children of a path: a fixed distribution for each."""
    weights = [random.Random(f"{path}{token}").random() ** 3 for token in range(BRANCHING)]
    ranked = sorted(range(BRANCHING), key=lambda token: -weights[token])
    return [(token, weights[token] / sum(weights)) for token in ranked[:count]]


def grow(
    policy: Policy, max_nodes: int, max_depth: int, least_score: float = 0.0
) -> tuple[Growth, int]:
    """A grown tree, and how many nodes were expanded for it."""
    growth = Growth(policy, max_nodes, max_depth, least_score)
    paths, expanded = {CONTEXT: ()}, 0
    while growth.frontier:
        families = [family(paths[node], growth.num_children) for node in growth.frontier]
        expanded += len(families)
        first = len(growth.token_ids)
        growth.add(families)
        for node in range(first, len(growth.token_ids)):
            paths[node] = (*paths[growth.parents[node]], growth.token_ids[node])
    return growth, expanded


def path_score(path: tuple[int, ...]) -> float:
    score = 1.0
    for depth, token in enumerate(path):
        score *= dict(family(path[:depth], BRANCHING))[token]
    return score


@pytest.mark.parametrize("max_nodes", [1, 5, 16, 40])
@pytest.mark.parametrize("max_depth", [1, 3, 5])
def test_best_first_keeps_the_best_paths_of_all(max_nodes: int, max_depth: int) -> None:
    every = [
        path
        for depth in range(1, max_depth + 1)
        for path in itertools.product(range(BRANCHING), repeat=depth)
    ]
    best = sorted(every, key=path_score, reverse=True)[:max_nodes]
    growth, expanded = grow(BestFirst(BRANCHING), max_nodes, max_depth)
    tree, scores, _ = growth.result()
    assert {tree.path_tokens(node) for node in range(len(tree))} == set(best)
    assert len(scores) == len(tree)
    assert expanded < 1 + max_nodes * max_depth


@pytest.mark.parametrize("least", [0.02, 0.1, 0.3, 1.0])
def test_what_is_of_no_use_is_neither_kept_nor_expanded(least: float) -> None:
    whole, all_expanded = grow(BestFirst(BRANCHING), 16, 4)
    useful = {
        path for path in map(whole.result()[0].path_tokens, range(16)) if path_score(path) >= least
    }
    growth, expanded = grow(BestFirst(BRANCHING), 16, 4, least)
    tree, _, _ = growth.result()
    assert {tree.path_tokens(node) for node in range(len(tree))} == useful
    assert expanded < all_expanded if least > 0.1 else expanded <= all_expanded


def test_scores_are_those_of_the_nodes() -> None:
    tree, scores, _ = grow(BestFirst(BRANCHING), 9, 4)[0].result()
    for node, score in enumerate(scores):
        path = tree.path_tokens(node)
        assert score == dict(family(path[:-1], BRANCHING))[path[-1]]


def test_static_widths_give_their_product() -> None:
    tree, _, _ = grow(Static((3, 2, 1)), 64, 10)[0].result()
    assert [tree.depths.count(depth) for depth in range(4)] == [3, 6, 6, 0]


def test_static_trees_obey_the_limits() -> None:
    assert len(grow(Static((3, 2, 1)), 7, 10)[0].result()[0]) == 7
    assert max(grow(Static((3, 2, 1)), 64, 2)[0].result()[0].depths) == 1


def test_a_node_without_children_ends_its_path() -> None:
    growth = Growth(BestFirst(), 8, 4)
    growth.add([[(5, 0.9), (6, 0.1)]])
    growth.add([[], [(7, 0.5)]])
    assert growth.frontier == [2]
    growth.add([[]])
    assert growth.frontier == []
    assert growth.result()[0].token_ids == (5, 6, 7)


def test_nothing_to_draft_is_an_empty_tree() -> None:
    growth = Growth(BestFirst(), 8, 4)
    growth.add([[]])
    assert growth.frontier == []
    assert len(growth.result()[0]) == 0


def test_by_level_what_a_depth_keeps_does_not_depend_on_the_next() -> None:
    """The same first depth, and below it the most or the least that can come."""
    kept = []
    for score in (1.0, 0.3):
        growth = Growth(BestFirst(4), 8, 4, by_level=True)
        growth.add([[(1, 0.4), (2, 0.3), (3, 0.2), (4, 0.1)]])
        while growth.frontier:
            growth.add([[(5, score)] for _ in growth.frontier])
        tree, _, _ = growth.result()
        assert len(tree) == 8
        kept.append({tree.path_tokens(node) for node in range(len(tree)) if tree.depths[node] == 0})
    assert kept[0] == kept[1] == {(1,), (2,), (3,), (4,)}


def test_by_level_a_depth_gets_half_of_what_is_left_and_the_last_the_rest() -> None:
    growth = Growth(BestFirst(8), 16, 3, by_level=True)
    while growth.frontier:
        growth.add([[(token, 0.1) for token in range(8)] for _ in growth.frontier])
    tree, _, _ = growth.result()
    assert [tree.depths.count(depth) for depth in range(3)] == [8, 4, 4]


def test_all_that_was_drawn_below_a_kept_node_is_told() -> None:
    draws = [Draws((one, 9), (one, 9), (0.5, 0.5)) for one in range(4)]
    growth = Growth(BestFirst(2), 3, 2, by_level=True)
    growth.add([[(0, 0.6), (9, 0.1)]], draws[:1])
    growth.add([[(1, 0.1)], [(2, 0.9)]], draws[1:3])
    tree, _, told = growth.result()
    assert {tree.path_tokens(node) for node in range(3)} == {(0,), (9,), (9, 2)}
    by_path = {tree.path_tokens(one.node) if one.node >= 0 else (): one.draws for one in told}
    assert by_path == {(): draws[0], (0,): draws[1], (9,): draws[2]}
