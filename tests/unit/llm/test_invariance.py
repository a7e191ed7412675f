"""The probe for batch invariance, and what it promises of the embedded model in bfloat16."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from tiny_models import House, random_tree, tiny_house

from actors.llm.invariance import is_batch_invariant
from actors.llm.loading import LoadedModel, load_model
from actors.tree import TokenTree


class Shifted:
    """A model whose logits move by a hair in some batches."""

    def __init__(self, model, moves):
        self._model, self._moves = model, moves
        self.vocab_size, self.kv_shape = model.vocab_size, model.kv_shape

    def forward(self, batch, cache):
        logits = self._model.forward(batch, cache)
        return logits * (1 + torch.finfo(logits.dtype).eps) if self._moves(batch) else logits


class ShiftedKV(Shifted):
    """A model whose logits are right, but a value that a step leaves behind is not quite."""

    def forward(self, batch, cache):
        logits = self._model.forward(batch, cache)
        if self._moves(batch):
            value = cache.data[-1, 1, :, batch.slots[0]]
            cache.data[-1, 1, :, batch.slots[0]] = value * (1 + torch.finfo(value.dtype).eps)
        return logits


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> LoadedModel:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bfloat16 kernels")
    return load_model(smollm2_path, torch.bfloat16, torch.device("cpu"))


@pytest.mark.model
def test_the_probe_sees_a_hair(smollm2):
    assert is_batch_invariant(smollm2)
    for kind, moves in (
        (Shifted, lambda batch: len(batch.token_ids) == 2),
        (Shifted, lambda batch: len(batch.token_ids) == 32),
        (Shifted, lambda batch: len(batch.spans) > 1),
        (ShiftedKV, lambda batch: not batch.spans[0].tree.is_chain),
    ):
        shifted = dataclasses.replace(smollm2, model=kind(smollm2.model, moves))
        assert not is_batch_invariant(shifted)


def test_a_context_too_short_to_try_is_not_promised():
    house = tiny_house("llama")
    assert not is_batch_invariant(dataclasses.replace(house.loaded, max_context_tokens=95))


@pytest.mark.model
@pytest.mark.parametrize("neighbours", [0, 2])
def test_rows_of_the_embedded_model_are_equal_to_the_last_bit(smollm2, neighbours):
    """A text as one prefill, and again in steps of many sizes and through trees."""
    chance = random.Random(neighbours)
    house = House(smollm2, num_blocks=160, block_tokens=16)
    text = [chance.randrange(49152) for _ in range(560)]
    house.add(0)
    _, expected = house.step(house.row(0, TokenTree.chain(text)))
    for request_id in range(1, 2 + neighbours):
        house.add(request_id)

    def check(tree, nodes):
        """Run the text's next tokens, as `nodes` of `tree`, and commit them."""
        start = len(house.tokens[1])
        rows = [house.row(1, tree)]
        for other in range(2, 2 + neighbours):
            rows.append(house.row(other, random_tree(chance, chance.randint(1, 9), 40)))
        _, logits = house.step(*rows)
        assert torch.equal(logits[: len(tree)][nodes], expected[start : start + len(nodes)])
        house.commit(rows[0], nodes)
        for row in rows[1:]:
            house.commit(row, row.tree.path(len(row.tree) - 1))

    for size in (1, 2, 8, 32, 1, 210, 3, 16, 1, 230, 1, 1, 2):
        start = len(house.tokens[1])
        check(TokenTree.chain(text[start : start + size]), range(size))
    while (start := len(house.tokens[1])) < 550:
        path = text[start : start + chance.randint(1, 6)]
        astray = [[*path[:depth], chance.randrange(49152)] for depth in range(1, len(path))]
        tree = TokenTree.from_paths([*astray, path, [*path[:1], 7]])
        nodes = [node for node in range(len(tree)) if _leads(tree.path_tokens(node), path)]
        check(tree, nodes)


def _leads(tokens, path):
    return list(tokens) == path[: len(tokens)]
