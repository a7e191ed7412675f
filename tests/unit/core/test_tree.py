"""Token trees: their invariants against brute force, and the lecture's exercise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.tree import CONTEXT, TokenTree

PATHS = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Forests whose nodes come in any order that puts parents before children."""
    token_ids: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(CONTEXT, len(token_ids) - 1))
        token = draw(st.integers(0, 4))
        if (parent, token) not in zip(parents, token_ids, strict=True):
            token_ids.append(token)
            parents.append(parent)
    return TokenTree(tuple(token_ids), tuple(parents))


def prefixes(paths):
    return {tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}


def all_paths(tree):
    return {tree.path_tokens(node) for node in range(len(tree))}


def is_depth_first(tree):
    """Each node's parent is the node before it or one of that node's ancestors."""
    return all(
        tree.parents[node] in (CONTEXT, *tree.path(node - 1)) for node in range(1, len(tree))
    )


@given(PATHS)
def test_from_paths_keeps_every_prefix_once_depth_first(paths):
    tree = TokenTree.from_paths(paths)
    assert len(tree) == len(all_paths(tree))
    assert all_paths(tree) == prefixes(paths)
    assert is_depth_first(tree)


@given(PATHS)
def test_from_paths_keeps_the_order_of_siblings(paths):
    tree = TokenTree.from_paths(paths)
    seen: dict[tuple[int, ...], None] = {}
    for path in paths:
        for end in range(1, len(path) + 1):
            seen.setdefault(tuple(path[:end]))
    for parent in range(CONTEXT, len(tree)):
        above = () if parent == CONTEXT else tree.path_tokens(parent)
        children = [tree.path_tokens(n) for n, p in enumerate(tree.parents) if p == parent]
        assert children == [path for path in seen if path[:-1] == above]


@given(st.lists(trees(), max_size=4))
def test_union_keeps_every_path_and_says_where_it_went(members):
    union, places = TokenTree.union(members)
    assert all_paths(union) == {path for member in members for path in all_paths(member)}
    assert is_depth_first(union)
    for member, nodes in zip(members, places, strict=True):
        for node in range(len(member)):
            assert union.path_tokens(nodes[node]) == member.path_tokens(node)


@given(trees())
def test_visibility_is_node_and_ancestors(tree):
    mask = tree.visibility()
    assert mask.shape == (len(tree), len(tree))
    for node in range(len(tree)):
        assert set(np.flatnonzero(mask[node])) == set(tree.path(node))


@given(trees())
def test_depth_is_the_number_of_ancestors(tree):
    assert list(tree.depths) == [len(tree.path(node)) - 1 for node in range(len(tree))]


@given(trees(), st.integers(0, 9))
def test_rooted_puts_one_node_above_all(tree, root):
    rooted = tree.rooted(root)
    assert rooted.token_ids[0] == root
    assert rooted.depths == (0, *(depth + 1 for depth in tree.depths))
    for node in range(len(tree)):
        assert rooted.path_tokens(node + 1) == (root, *tree.path_tokens(node))


@given(trees())
def test_leaves_are_the_nodes_that_are_nobodys_parent(tree):
    ends = all_paths(tree)
    inner = {path[:-1] for path in ends}
    assert {tree.path_tokens(leaf) for leaf in tree.leaves()} == ends - inner


@given(trees())
def test_child_finds_exactly_the_children(tree):
    for parent in range(CONTEXT, len(tree)):
        for token in range(5):
            matching = [
                node
                for node in range(len(tree))
                if tree.parents[node] == parent and tree.token_ids[node] == token
            ]
            assert tree.child(parent, token) == (matching[0] if matching else None)


@given(trees(), st.data())
def test_restricted_keeps_paths_and_refuses_orphans(tree, data):
    marked = data.draw(st.sets(st.integers(0, max(len(tree) - 1, 0)), max_size=len(tree)))
    nodes = sorted({step for node in marked for step in tree.path(node)})
    part = tree.restricted(nodes)
    assert [part.path_tokens(n) for n in range(len(part))] == [tree.path_tokens(n) for n in nodes]
    if marked and set(nodes) != marked:
        with pytest.raises(ValueError, match="parent"):
            tree.restricted(sorted(marked))


def test_restricted_refuses_another_order():
    with pytest.raises(ValueError, match="must be in"):
        TokenTree.chain([5, 6]).restricted([1, 0])


@pytest.mark.parametrize(
    ("token_ids", "parents", "message"),
    [
        ((1, 2), (-1,), "entries"),
        ((1, -2), (-1, 0), "not negative"),
        ((1, 2), (-1, 1), "must be in"),
        ((1, 2), (-1, -2), "must be in"),
        ((1, 2, 2), (-1, 0, 0), "repeats"),
        ((7, 7), (-1, -1), "repeats"),
    ],
)
def test_what_is_no_tree_is_refused(token_ids, parents, message):
    with pytest.raises(ValueError, match=message):
        TokenTree(token_ids, parents)


def test_same_token_on_another_path_is_another_node():
    assert len(TokenTree.from_paths([[1, 2], [2, 2], [2, 1, 2]])) == 6


def test_chains():
    chain = TokenTree.chain([4, 5, 6])
    assert chain.is_chain
    assert chain == TokenTree.from_paths([[4, 5, 6]])
    assert TokenTree().is_chain
    assert not TokenTree.from_paths([[1], [2]]).is_chain


def test_exercise_5_three_sequences_under_a_root():
    """Merging [a b c], [a b d e], [f g] under the verified token r."""
    a, b, c, d, e, f, g, r = range(8)
    tree = TokenTree.from_paths([[a, b, c], [a, b, d, e], [f, g]])
    assert len(tree) == 7
    step = tree.rooted(r)
    expected = [(r, 0), (a, 1), (b, 2), (c, 3), (d, 3), (e, 4), (f, 1), (g, 2)]
    assert list(zip(step.token_ids, step.depths, strict=True)) == expected
    seen = np.flatnonzero(step.visibility()[step.token_ids.index(e)])
    assert [step.token_ids[node] for node in seen] == [r, a, b, d, e]
