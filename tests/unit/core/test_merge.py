"""Merging drafts: nothing is lost, nobody is believed blindly, and a cut keeps ancestors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tree import all_paths, is_depth_first, trees

from actors.request_manager.merge import MergedTree, Proposal, merge
from actors.request_manager.ports import Draft
from actors.tree import CONTEXT, TokenTree
from actors.verification import Draws, NodeDraws, Rule

VOCAB_SIZE = 5
SCORES = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0))


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    tree = draw(trees())
    size = len(tree)
    return Draft(tree, tuple(draw(st.lists(SCORES, min_size=size, max_size=size))))


DRAFTS_BY_NAME = st.dictionaries(st.sampled_from(["ssm", "lookup", "suffix"]), drafts())


def draft_of(*paths, score=0.5):
    tree = TokenTree.from_paths(paths)
    return Draft(tree, (score,) * len(tree))


def test_exercise_5_three_drafters():
    a, b, c, d, e, f, g = range(7)
    merged, rejected = merge(
        {"one": draft_of([a, b, c]), "two": draft_of([a, b, d, e]), "three": draft_of([f, g])}, 7
    )
    assert not rejected
    assert merged.tree.token_ids == (a, b, c, d, e, f, g)
    assert merged.tree.rooted(7).depths == (0, 1, 2, 3, 3, 4, 1, 2)
    who = [[(p.drafter, p.node) for p in proposals] for proposals in merged.proposals]
    assert who == [
        [("one", 0), ("two", 0)],
        [("one", 1), ("two", 1)],
        [("one", 2)],
        [("two", 2)],
        [("two", 3)],
        [("three", 0)],
        [("three", 1)],
    ]


@given(DRAFTS_BY_NAME)
def test_every_path_and_every_proposal_is_kept(by_name):
    merged, rejected = merge(by_name, VOCAB_SIZE)
    assert rejected == {}
    assert is_depth_first(merged.tree)
    assert all_paths(merged.tree) == {
        p for draft in by_name.values() for p in all_paths(draft.tree)
    }
    found = {
        (merged.tree.path_tokens(node), proposal)
        for node, proposals in enumerate(merged.proposals)
        for proposal in proposals
    }
    assert found == {
        (draft.tree.path_tokens(node), Proposal(name, node, draft.scores[node]))
        for name, draft in by_name.items()
        for node in range(len(draft.tree))
    }
    assert sum(map(len, merged.proposals)) == len(found)


@given(DRAFTS_BY_NAME)
def test_estimates_are_probabilities_of_disjoint_events(by_name):
    merged, _ = merge(by_name, VOCAB_SIZE)
    by_parent: dict[int, float] = {}
    for parent, acceptance in zip(merged.tree.parents, merged.acceptance, strict=True):
        assert 0.0 <= acceptance <= 1.0
        by_parent[parent] = by_parent.get(parent, 0.0) + acceptance
    assert all(total <= 1.0 + 1e-9 for total in by_parent.values())


@given(DRAFTS_BY_NAME)
def test_path_score_is_the_product_along_the_path(by_name):
    merged, _ = merge(by_name, VOCAB_SIZE)
    for node, score in enumerate(merged.path_scores):
        along = [merged.acceptance[step] for step in merged.tree.path(node)]
        assert score == pytest.approx(math.prod(along))
        parent = merged.tree.parents[node]
        assert parent == CONTEXT or score <= merged.path_scores[parent]


@given(DRAFTS_BY_NAME, st.integers(0, 20), st.integers(0, 6))
def test_a_cut_keeps_the_best_nodes_with_their_ancestors(by_name, max_nodes, max_depth):
    merged, _ = merge(by_name, VOCAB_SIZE)
    cut = merged.cut(max_nodes, max_depth)
    shallow = [node for node in range(len(merged)) if merged.tree.depths[node] < max_depth]
    assert len(cut) == min(max_nodes, len(shallow))
    assert all(depth < max_depth for depth in cut.tree.depths)
    best = sorted((merged.path_scores[node] for node in shallow), reverse=True)[:max_nodes]
    assert sorted(cut.path_scores, reverse=True) == best
    kept = all_paths(cut.tree)
    assert all(path[:-1] in kept for path in kept if len(path) > 1)
    for node, proposals in enumerate(cut.proposals):
        for proposal in proposals:
            own = by_name[proposal.drafter].tree.path_tokens(proposal.node)
            assert own == cut.tree.path_tokens(node)


def test_two_proposers_are_believed_more_than_one():
    merged, _ = merge({"one": draft_of([1], [2], score=0.3), "two": draft_of([1], score=0.4)}, 5)
    assert merged.acceptance == pytest.approx((1 - 0.7 * 0.6, 0.3))


def test_siblings_share_one_probability():
    merged, _ = merge({"one": draft_of([1], [2], score=0.9)}, 5)
    assert merged.acceptance == pytest.approx((0.5, 0.5))


def test_estimates_replace_scores_that_the_proposals_keep():
    def measured(drafter: str, depth: int, score: float) -> float:
        return {"one": 0.8, "two": 0.4}[drafter] * score / (depth + 1)

    drafts_by_name = {"one": draft_of([1, 2]), "two": draft_of([1])}
    merged, _ = merge(drafts_by_name, 5, measured)
    assert merged.acceptance == pytest.approx((1 - 0.6 * 0.8, 0.2))
    assert {proposal.score for proposals in merged.proposals for proposal in proposals} == {0.5}


def test_nothing_to_merge():
    assert merge({}, 5).merged == MergedTree()
    assert merge({"idle": Draft(TokenTree(), ())}, 5) == (MergedTree(), {})
    assert MergedTree().cut(4, 4) == MergedTree()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Draft(TokenTree.chain([1, 5]), (0.5, 0.5)), "token id"),
        (Draft(TokenTree.chain([1, 2]), (0.5,)), "scores"),
        (Draft(TokenTree.chain([1]), (0.5, 0.5)), "scores"),
        (Draft(TokenTree.chain([1, 2]), (0.5, float("nan"))), "score is not in"),
        (Draft(TokenTree.chain([1, 2]), (float("inf"), 0.5)), "score is not in"),
        (Draft(TokenTree.chain([1, 2]), (1.5, 0.5)), "score is not in"),
        (Draft(TokenTree.chain([1, 2]), (-0.1, 0.5)), "score is not in"),
    ],
)
def test_a_wrong_draft_is_left_out_whole_and_reported(wrong, reason):
    right = draft_of([1, 2], [3])
    merged, rejected = merge({"wrong": wrong, "right": right}, VOCAB_SIZE)
    assert merged == merge({"right": right}, VOCAB_SIZE).merged
    assert list(rejected) == ["wrong"]
    assert reason in rejected["wrong"]


# ----------------------------------------------------------------- drafts that will be weighed


def draws(*tokens):
    return Draws(tokens, (1, 2, 3), (0.5, 0.3, 0.2))


def drawn_draft():
    tree = TokenTree((1, 2, 3), (CONTEXT, CONTEXT, 1))
    return Draft(
        tree, (0.5, 0.2, 0.9), (NodeDraws(CONTEXT, draws(1, 2)), NodeDraws(1, draws(3, 1)))
    )


def test_draws_of_several_draft_models_stand_in_their_order():
    tree = TokenTree((2, 1), (CONTEXT, 0))
    other = Draft(tree, (0.5, 0.5), (NodeDraws(CONTEXT, draws(2)), NodeDraws(0, draws(1))))
    merged, rejected = merge({"a": drawn_draft(), "b": other}, 5, rule=Rule.MSS)
    assert not rejected
    below_2 = merged.tree.child(CONTEXT, 2)
    assert merged.draws == (
        NodeDraws(CONTEXT, draws(1, 2)),
        NodeDraws(below_2, draws(3, 1)),
        NodeDraws(CONTEXT, draws(2)),
        NodeDraws(below_2, draws(1)),
    )


def test_draws_follow_their_nodes_and_outlive_the_drafts():
    lookup = draft_of([2, 3], [4])
    merged, rejected = merge({"lookup": lookup, "ssm": drawn_draft()}, 5, rule=Rule.MSS)
    assert not rejected
    below_2 = merged.tree.child(CONTEXT, 2)
    assert merged.draws == (NodeDraws(CONTEXT, draws(1, 2)), NodeDraws(below_2, draws(3, 1)))
    nothing = merged.restricted(())
    assert nothing.draws == (NodeDraws(CONTEXT, draws(1, 2)),)
    assert nothing.rule is Rule.MSS


def test_weighed_drafts_are_cut_level_by_level():
    """A deep node that is sure does not push out one above that is not."""
    scores = (0.9, 0.05, 1.0, 1.0)
    tree = TokenTree((1, 2, 3, 4), (CONTEXT, CONTEXT, 0, 2))
    for rule, left in ((Rule.MSS, {(1,), (2,)}), (Rule.COUPLED, {(1,), (1, 3)})):
        merged, _ = merge({"ssm": Draft(tree, scores)}, 5, rule=rule)
        assert all_paths(merged.cut(2, 9).tree) == left


@pytest.mark.parametrize(
    ("change", "rule", "reason"),
    [
        ({}, Rule.COUPLED, "coupled has no use"),
        ({"draws": (NodeDraws(3, draws(1)),)}, Rule.MSS, "not there"),
        ({"draws": (NodeDraws(0, draws(1)),) * 2}, Rule.SPECTR, "two parts"),
        ({"draws": (NodeDraws(0, Draws((7,), (7,), (1.0,))),)}, Rule.MSS, "not below 5"),
        ({"draws": (NodeDraws(0, draws(1, 1)),)}, Rule.MSS, "twice"),
    ],
)
def test_draws_with_a_fault_take_the_whole_draft_with_them(change, rule, reason):
    merged, rejected = merge({"ssm": replace(drawn_draft(), **change)}, 5, rule=rule)
    assert reason in rejected["ssm"]
    assert not merged.draws
    assert len(merged) == 0


def test_with_replacement_a_token_may_be_drawn_twice():
    twice = replace(drawn_draft(), draws=(NodeDraws(0, draws(1, 1)),))
    assert not merge({"ssm": twice}, 5, rule=Rule.SPECTR).rejected
