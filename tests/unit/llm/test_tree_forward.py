"""A tree in one forward pass equals its paths, one by one, through stock transformers."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import FAMILIES, FUSED, random_tree, tiny_house

from actors.tree import TokenTree

BACKENDS = [
    *((family, True) for family in FAMILIES),
    *((family, False) for family in FUSED),
]


@pytest.mark.parametrize(("family", "stock"), BACKENDS)
def test_tree_equals_its_paths(family, stock):
    house = tiny_house(family, stock)
    assert house.rank.describe().backend == ("stock" if stock else "fused")
    chance = random.Random(5)
    house.add(0)
    prefill = house.row(0, TokenTree.chain(chance.randrange(61) for _ in range(11)))
    _, logits = house.step(prefill)
    torch.testing.assert_close(logits, house.expected(prefill), atol=1e-9, rtol=0)
    house.commit(prefill, range(11))
    row = house.row(0, random_tree(chance, 17))
    _, logits = house.step(row)
    torch.testing.assert_close(logits, house.expected(row), atol=1e-9, rtol=0)


def test_same_token_under_different_parents():
    house = tiny_house("llama")
    house.add(0)
    tree = TokenTree.from_paths([(7, 1, 9), (7, 2, 9), (7, 3, 9)])
    row = house.row(0, tree)
    _, logits = house.step(row)
    torch.testing.assert_close(logits, house.expected(row), atol=1e-9, rtol=0)
    ends = logits[[node for node in range(len(tree)) if tree.token_ids[node] == 9]]
    assert (ends[0] - ends[1]).abs().max() > 1e-3
    assert (ends[1] - ends[2]).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_window_counts_depth_and_not_slots(family):
    """Siblings take slots between a node and what it sees; its window must not shrink."""
    house = tiny_house(family)
    house.add(0)
    prompt = house.row(0, TokenTree.chain([3, 4, 5, 6]))
    house.step(prompt)
    house.commit(prompt, range(4))
    tree = TokenTree.from_paths([(7, 50 + sibling) for sibling in range(8)] + [(7, 1, 2, 3)])
    row = house.row(0, tree)
    _, logits = house.step(row)
    torch.testing.assert_close(logits, house.expected(row), atol=1e-9, rtol=0)


@pytest.mark.parametrize(("family", "stock"), [("llama", False), ("gemma2", True)])
def test_requests_of_all_kinds_share_a_step(family, stock):
    house = tiny_house(family, stock)
    chance = random.Random(8)
    for request_id, length in ((0, 9), (1, 3), (2, 20)):
        house.add(request_id)
        row = house.row(request_id, TokenTree.chain(chance.randrange(61) for _ in range(length)))
        house.step(row)
        house.commit(row, range(length))
    house.add(3)
    rows = [
        house.row(0, TokenTree.chain([5])),
        house.row(1, random_tree(chance, 9)),
        house.row(2, TokenTree.chain([6, 7])),
        house.row(3, TokenTree.chain(range(30)), first_output=29),
    ]
    _, logits = house.step(*rows)
    expected = torch.cat([house.expected(row) for row in rows])
    torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
