"""The form that drafts computes what the form that is trained computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import SHAPE, VOCAB, WINDOWED, draft_model, fused
from torch import Tensor

from actors.decoder.attention_groups import Span
from actors.decoder.kv_cache import KVCache
from actors.ssm.inference import FusedDraft
from actors.ssm.model import DraftShape
from actors.tree import TokenTree

CPU = torch.device("cpu")
SHAPES = pytest.mark.parametrize("shape", [SHAPE, WINDOWED], ids=["full", "windowed"])


@pytest.fixture(params=["native", "torch"], autouse=True)
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With native kernels where there are any, and without."""
    if request.param == "torch":
        monkeypatch.setattr("actors.decoder.decoder.native_kernels", lambda *_: None)


def expected(shape: DraftShape, tokens: list[int]) -> Tensor:
    """[tokens, cut] logits of the trained form."""
    model = draft_model(shape)
    return model.logits(model(torch.tensor([tokens])))[0]


def close(found: Tensor, wanted: Tensor, error: float = 2e-4) -> None:
    """Sums in another order; logits are some units apart."""
    torch.testing.assert_close(found, wanted, atol=error, rtol=error)


def text(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (length,), generator=generator).tolist()


class Bench:
    """A model with a cache in which every sequence has scattered slots of its own."""

    def __init__(self, model: FusedDraft, num_sequences: int = 1, length: int = 128) -> None:
        self._model = model
        self._cache = KVCache(model.kv_shape, 1, num_sequences * length, model.dtype, CPU)
        slots = np.random.default_rng(0).permutation(num_sequences * length)
        self._places = slots.reshape(num_sequences, length)

    def run(self, *parts: tuple[int, TokenTree, int, int]) -> Tensor:
        """Logits of rows; a part is a sequence, a tree, where it starts, and its first row."""
        spans, first_row = [], 0
        for sequence, tree, start, first_node in parts:
            spans.append(Span(tree, start, first_row, self._places[sequence], first_node))
            first_row += spans[-1].num_rows
        with torch.inference_mode():
            return self._model.logits(self._model.forward(spans, self._cache))


@SHAPES
def test_texts_side_by_side_in_parts(shape: DraftShape) -> None:
    bench, long, short = Bench(fused(shape), 2), text(1, 20), text(2, 9)
    chain = TokenTree.chain
    first = bench.run((0, chain(long[:12]), 0, 0), (1, chain(short[:5]), 0, 0))
    close(first[:12], expected(shape, long)[:12])
    close(first[12:], expected(shape, short)[:5])
    second = bench.run((1, chain(short[5:]), 5, 0), (0, chain(long[12:]), 12, 0))
    close(second[:4], expected(shape, short)[5:])
    close(second[4:], expected(shape, long)[12:])


@SHAPES
def test_every_node_of_a_tree_sees_its_own_path_only(shape: DraftShape) -> None:
    """Trees that grow depth by depth: a step has the new nodes alone as its rows."""
    bench, left, right = Bench(fused(shape), 2), text(4, 10), text(5, 6)
    bench.run((0, TokenTree.chain(left), 0, 0), (1, TokenTree.chain(right), 0, 0))
    token_ids, parents = (31, 32, 33, 34, 35, 36), (-1, -1, 1, 0, 1, 4)

    def left_tree(size: int) -> TokenTree:
        return TokenTree(token_ids[:size], parents[:size])

    logits = bench.run((0, left_tree(2), 10, 0), (1, TokenTree((41,), (-1,)), 6, 0))
    check(shape, (left, right), [(0, [31]), (0, [32]), (1, [41])], logits)
    chain = TokenTree((41, 42), (-1, 0))
    logits = bench.run((1, chain, 6, 1), (0, left_tree(5), 10, 2))
    paths = [(1, [41, 42]), (0, [32, 33]), (0, [31, 34]), (0, [32, 35])]
    check(shape, (left, right), paths, logits)
    logits = bench.run((0, left_tree(6), 10, 5))
    check(shape, (left, right), [(0, [32, 35, 36])], logits)


def check(
    shape: DraftShape,
    contexts: tuple[list[int], list[int]],
    paths: list[tuple[int, list[int]]],
    logits: Tensor,
) -> None:
    for (sequence, path), row in zip(paths, logits, strict=True):
        close(row, expected(shape, contexts[sequence] + path)[-1])


def test_positions_beyond_the_first_rotary_table() -> None:
    tokens = text(7, 1100)
    logits = Bench(fused(WINDOWED), 1, 1100).run((0, TokenTree.chain(tokens), 0, 0))
    close(logits[-1], expected(WINDOWED, tokens)[-1], 1e-3)


def test_bfloat16_is_close() -> None:
    tokens = text(8, 24)
    bench = Bench(FusedDraft(draft_model(), torch.bfloat16))
    logits = bench.run((0, TokenTree.chain(tokens), 0, 0))
    exact = expected(SHAPE, tokens)
    assert (logits - exact).abs().mean() < 0.02 * exact.std()
