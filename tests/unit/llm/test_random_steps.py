"""Many steps of many requests, in any order: the KV is always that of the committed tokens."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import random_tree, tiny_house

from actors.tree import TokenTree


def random_row(house, chance, request_id):
    size = chance.randint(1, 9)
    if chance.random() < 0.4:
        tree = TokenTree.chain(chance.randrange(61) for _ in range(size))
    else:
        tree = random_tree(chance, size)
    return house.row(request_id, tree, first_output=chance.randrange(size))


def random_path(chance, tree):
    """The nodes to keep: a path from the context down, of any length; empty rolls all back."""
    path = tree.path(chance.randrange(len(tree)))
    return path[: chance.randint(0, len(path))]


@pytest.mark.parametrize(
    ("family", "stock", "seed"),
    [("llama", False, 1), ("llama", False, 2), ("mistral", False, 3), ("gemma3_text", True, 4)],
)
def test_any_run_of_steps_equals_full_recompute(family, stock, seed):
    chance = random.Random(seed)
    house = tiny_house(family, stock)
    next_id = 0
    for _ in range(30):
        if len(house.tokens) < 3:
            house.add(next_id)
            next_id += 1
        elif chance.random() < 0.1:
            house.release(chance.choice(list(house.tokens)))
        active = [key for key in house.tokens if chance.random() < 0.8]
        rows = [random_row(house, chance, key) for key in active]
        reply, logits = house.step(*rows)
        if rows:
            expected = torch.cat([house.expected(row) for row in rows])
            torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)
            assert [result.request_id for result in reply.results] == active
        for row in rows:
            house.commit(row, random_path(chance, row.tree))
            if len(house.tokens[row.request_id]) > 24:
                house.release(row.request_id)


def test_chunks_of_a_prompt_equal_the_whole():
    house = tiny_house("llama")
    ids = [(7 * place + 3) % 61 for place in range(90)]
    house.add(0)
    for start, size in ((0, 1), (1, 70), (71, 2), (73, 17)):
        row = house.row(0, TokenTree.chain(ids[start : start + size]))
        _, logits = house.step(row)
        torch.testing.assert_close(logits[-1:], house.expected(row)[-1:], atol=1e-9, rtol=0)
        house.commit(row, range(size))
