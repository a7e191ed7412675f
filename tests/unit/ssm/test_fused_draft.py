"""The form that drafts computes what the form that is trained computes."""

from __future__ import annotations

import pytest
import torch
from tiny import SHAPE, VOCAB, WINDOWED, draft_model, fused
from torch import Tensor

from actors.ssm.inference import FusedDraft
from actors.ssm.lanes import Lanes, Span
from actors.ssm.model import DraftShape

SHAPES = pytest.mark.parametrize("shape", [SHAPE, WINDOWED], ids=["full", "windowed"])


def expected(shape: DraftShape, tokens: list[int]) -> Tensor:
    """[tokens, cut] logits of the trained form."""
    model = draft_model(shape)
    return model.logits(model(torch.tensor([tokens])))[0]


def run(model: FusedDraft, lanes: Lanes, span: Span, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        return model.logits(model.forward(torch.tensor(tokens), lanes, span))


def close(found: Tensor, wanted: Tensor, error: float = 2e-4) -> None:
    """Sums in another order; logits are some units apart."""
    torch.testing.assert_close(found, wanted, atol=error, rtol=error)


def text(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (length,), generator=generator).tolist()


@SHAPES
def test_texts_side_by_side_in_parts(shape: DraftShape) -> None:
    model, long, short = fused(shape), text(1, 20), text(2, 9)
    lanes = Lanes([model.new_cache(0)] * 2, [0, 0], shape.window)
    first = run(model, lanes, lanes.tail([12, 5]), long[:12] + short[:5])
    close(first[:12], expected(shape, long)[:12])
    close(first[12:], expected(shape, short)[:5])


@SHAPES
def test_a_context_from_the_cache(shape: DraftShape) -> None:
    model, tokens = fused(shape), text(3, 30)
    whole = Lanes([model.new_cache(0)], [0], shape.window)
    run(model, whole, whole.tail([21]), tokens[:21])
    first = 21 - shape.window if shape.window else 0
    context = whole.keys_values[:, :, 0, :, first:21]
    lanes = Lanes([context], [21], shape.window)
    logits = run(model, lanes, lanes.tail([9]), tokens[21:])
    close(logits, expected(shape, tokens)[21:])


@SHAPES
def test_every_node_of_a_tree_sees_its_own_path_only(shape: DraftShape) -> None:
    model, left, right = fused(shape), text(4, 10), text(5, 6)
    lanes = Lanes([model.new_cache(0)] * 2, [0, 0], shape.window)
    run(model, lanes, lanes.tail([10, 6]), left + right)
    paths = [(0, [31]), (0, [32]), (1, [41])]
    logits = run(model, lanes, lanes.children([2, 1], [9, 9, 5], 1), [31, 32, 41])
    check(shape, (left, right), paths, logits)
    # The second lane's tree is at its end, the first one's goes on below both nodes.
    paths = [(0, [32, 33]), (0, [31, 34]), (0, [32, 35])]
    logits = run(model, lanes, lanes.children([3, 0], [1, 0, 1], 2), [33, 34, 35])
    check(shape, (left, right), paths, logits)
    logits = run(model, lanes, lanes.children([1, 0], [2], 3), [36])
    check(shape, (left, right), [(0, [32, 35, 36])], logits)


def check(
    shape: DraftShape,
    contexts: tuple[list[int], list[int]],
    paths: list[tuple[int, list[int]]],
    logits: Tensor,
) -> None:
    for (lane, path), row in zip(paths, logits, strict=True):
        close(row, expected(shape, contexts[lane] + path)[-1])


def test_lanes_grow_beyond_their_first_size() -> None:
    model, tokens = fused(), text(6, 8)
    lanes = Lanes([model.new_cache(0)], [0], 0)
    run(model, lanes, lanes.tail([8]), tokens)
    path: list[int] = []
    for depth in range(1, 100):
        path.append(depth)
        parent = 7 if depth == 1 else 0
        logits = run(model, lanes, lanes.children([1], [parent], depth), [depth])
    close(logits[0], expected(SHAPE, tokens + path)[-1])


def test_positions_beyond_the_first_rotary_table() -> None:
    model, tokens = fused(WINDOWED), text(7, 1100)
    lanes = Lanes([model.new_cache(0)], [0], WINDOWED.window)
    logits = run(model, lanes, lanes.tail([1100]), tokens)
    close(logits[-1], expected(WINDOWED, tokens)[-1], 1e-3)


def test_bfloat16_is_close() -> None:
    model, tokens = FusedDraft(draft_model(), torch.bfloat16), text(8, 24)
    lanes = Lanes([model.new_cache(0)], [0], 0)
    logits = run(model, lanes, lanes.tail([24]), tokens)
    exact = expected(SHAPE, tokens)
    assert (logits - exact).abs().mean() < 0.02 * exact.std()
