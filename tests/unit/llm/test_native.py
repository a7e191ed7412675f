"""Native kernels against plain arithmetic in float64, and to the last bit against themselves."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from actors.decoder.batch import RowLayout
from actors.decoder.kv_cache import KVShape
from actors.decoder.native import build
from actors.decoder.native.kernels import HEAD_DIMS, Kernels, best_of_rows, native_kernels
from actors.tree import TokenTree

EPS = 1e-5
CPU = torch.device("cpu")
NUM_SLOTS = 900
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

pytestmark = pytest.mark.skipif(build.native_library() is None, reason="no C++ compiler here")


def make(dtype: torch.dtype, heads: int = 6, kv_heads: int = 2, head_dim: int = 64) -> Kernels:
    kernels = native_kernels(dtype, CPU, heads, KVShape(1, kv_heads, head_dim), (64, 96), EPS)
    assert kernels is not None
    return kernels


def close(ours: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(
        ours.double(), exact, rtol=TOLERANCE[ours.dtype], atol=TOLERANCE[ours.dtype]
    )


def random_tree(chance: random.Random, size: int) -> TokenTree:
    parents = [-1, *(max(0, chance.randrange(node - 4, node)) for node in range(1, size))]
    return TokenTree(tuple(range(size)), tuple(parents))


def lay_out(
    trees: Sequence[TokenTree], starts: Sequence[int], slots: Sequence[int]
) -> tuple[RowLayout, torch.Tensor]:
    """Requests over consecutive runs of `slots`, and each row's own slot."""
    spans, own, first, begin = [], [], 0, 0
    for tree, start in zip(trees, starts, strict=True):
        spans.append((first, len(tree), start, tree.is_chain, 0, begin, first))
        own.extend(slots[begin + start : begin + start + len(tree)])
        first += len(tree)
        begin += start + len(tree)
    layout = RowLayout(
        torch.tensor(spans, dtype=torch.int64),
        torch.tensor(slots[:begin]),
        torch.tensor([parent for tree in trees for parent in tree.parents]),
        torch.tensor([depth for tree in trees for depth in tree.depths]),
    )
    return layout, torch.tensor(own)


def exact_attention(
    qkv: torch.Tensor,
    layer: torch.Tensor,
    layout: RowLayout,
    trees: Sequence[TokenTree],
    heads: int,
    window: int | None,
) -> torch.Tensor:
    kv_heads, head_dim = layer.shape[1], layer.shape[3]
    out = torch.empty(len(qkv), heads, head_dim, dtype=torch.float64)
    rows = qkv.view(len(qkv), -1, head_dim).double()
    for tree, (first, _, start, _, _, begin, _) in zip(trees, layout.spans.tolist(), strict=True):
        places = layout.places[begin:]
        for node in range(len(tree)):
            path = torch.tensor([*range(start), *(start + step for step in tree.path(node))])
            keys = places[path][-window:] if window else places[path]
            for head in range(heads):
                k, v = layer[:, head * kv_heads // heads, keys].double()
                scores = torch.softmax(k @ rows[first + node, head] * head_dim**-0.5, 0)
                out[first + node, head] = scores @ v
    return out.view(len(qkv), -1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(9, 3, 64), (6, 1, 32), (2, 2, 96), (8, 2, 128)]
)
def test_attention_sees_the_prefix_and_its_own_path(dtype, window, heads, kv_heads, head_dim):
    chance = random.Random(head_dim)
    torch.manual_seed(head_dim)
    trees = [
        TokenTree.chain(range(5)),
        random_tree(chance, 17),
        TokenTree.chain([0]),
        TokenTree.chain(range(90)),
        random_tree(chance, 70),
    ]
    starts = [0, 130, 64, 37, 200]
    layout, _ = lay_out(trees, starts, chance.sample(range(NUM_SLOTS), NUM_SLOTS))
    layer = torch.randn(2, kv_heads, NUM_SLOTS, head_dim).to(dtype)
    qkv = torch.randn(sum(map(len, trees)), (heads + 2 * kv_heads) * head_dim).to(dtype)
    ours = make(dtype, heads, kv_heads, head_dim).attend(qkv, layer, layout, window)
    close(ours, exact_attention(qkv, layer, layout, trees, heads, window))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_row_is_the_same_to_the_last_bit_whatever_stands_around_it(dtype):
    """A path decoded in one chain, row by row, and through a tree, on shuffled slots."""
    chance, kernels = random.Random(1), make(dtype)
    torch.manual_seed(1)
    start, path = 83, 12
    rows = torch.randn(path, 10 * 64).to(dtype)
    content = torch.randn(2, 2, start + path, 64).to(dtype)

    def attend(tree: TokenTree, nodes: Sequence[int], first: int = 0) -> torch.Tensor:
        """The path from its place `first` on, which lies on `nodes` of the tree."""
        before = start + first
        slots = chance.sample(range(NUM_SLOTS), NUM_SLOTS)
        layout, _ = lay_out([random_tree(chance, 7), tree], [40, before], slots)
        layer = torch.randn(2, 2, NUM_SLOTS, 64).to(dtype)
        places = layout.places[layout.spans[1, 5] :]
        layer[:, :, places[:before]] = content[:, :, :before]
        qkv = torch.randn(7 + len(tree), 10 * 64).to(dtype)
        for place, node in enumerate(nodes):
            layer[:, :, places[before + node]] = content[:, :, before + place]
            qkv[7 + node] = rows[first + place]
        return kernels.attend(qkv, layer, layout, None)[[7 + node for node in nodes]]

    whole = attend(TokenTree.chain(range(path)), range(path))
    wrong = [[*range(depth), 99] for depth in range(path)]
    tree = TokenTree.from_paths([*wrong, list(range(path))])
    nodes = tree.path(len(tree) - 1)
    assert tree.path_tokens(nodes[-1]) == tuple(range(path))
    assert torch.equal(attend(tree, nodes), whole)
    for place in range(path):
        assert torch.equal(attend(TokenTree.chain([0]), [0], place)[0], whole[place])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 9])
def test_a_tree_in_two_steps_is_the_tree_in_one(dtype, window):
    """The second step has the last nodes as rows and finds the first ones in the cache."""
    chance, kernels, start, size, first_node = random.Random(2), make(dtype), 37, 21, 8
    torch.manual_seed(2)
    for tree in (random_tree(chance, size), TokenTree.chain(range(size))):
        slots = chance.sample(range(NUM_SLOTS), NUM_SLOTS)
        layer = torch.randn(2, 2, NUM_SLOTS, 64).to(dtype)
        qkv = torch.randn(size, 10 * 64).to(dtype)
        whole, _ = lay_out([tree], [start], slots)
        expected = kernels.attend(qkv, layer, whole, window)[first_node:]
        spans = torch.tensor([[0, size, start, tree.is_chain, first_node, 0, 0]])
        later = RowLayout(spans, whole.places, whole.parents, whole.depths)
        ours = kernels.attend(qkv[first_node:].contiguous(), layer, later, window)
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("width", [7, 16, 250])
def test_the_best_of_each_row(width):
    torch.manual_seed(width)
    logits = torch.randn(9, width) * 4
    logits[0, 3:] = -torch.inf
    logits[1] = -torch.inf
    logits[2] = 1.5
    places, probabilities = best_of_rows(logits, 5)
    exact = logits.double().softmax(-1).nan_to_num(0.0)
    order = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :5]
    whole = [0, *range(2, 9)]
    real = exact.gather(1, order)[whole] > 0
    assert torch.equal(places[whole][real], order[whole][real])
    close(probabilities, exact.gather(1, order))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_norm_adds_in_place(dtype):
    residual, delta = torch.randn(30, 64).to(dtype), torch.randn(30, 64).to(dtype)
    weight = torch.randn(64).to(dtype)
    summed = (residual.double() + delta.double()).to(dtype)
    ours = make(dtype).add_rms_norm(residual, delta, weight)
    assert torch.equal(residual, summed)
    exact = summed.double()
    exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + EPS) * weight.double()
    close(ours, exact)
    again = make(dtype).add_rms_norm(residual, None, weight)
    assert torch.equal(residual, summed)
    assert torch.equal(again, ours)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_activation_over_its_whole_range(dtype):
    gate = torch.linspace(-200, 200, 30 * 96).view(30, 96).to(dtype)
    up = torch.randn(30, 96).to(dtype)
    ours = make(dtype).silu_mul(torch.cat((gate, up), 1))
    assert torch.isfinite(ours).all()
    close(ours, F.silu(gate.double()) * up.double())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("normed", [False, True])
def test_rotation_and_what_goes_into_the_cache(dtype, normed):
    heads, kv_heads, dim = 6, 2, 64
    rows = torch.randn(27, (heads + 2 * kv_heads) * dim).to(dtype)
    angles = torch.outer(torch.arange(27.0), torch.rand(dim // 2)).repeat(1, 2)
    norms = [torch.randn(dim).to(dtype) if normed else None for _ in range(2)]
    layer = torch.zeros(2, kv_heads, 50, dim, dtype=dtype)
    slots = torch.randperm(50)[:27]
    exact = rows.double().view(27, -1, dim)
    if normed:
        for part, weight in zip(
            (slice(0, heads), slice(heads, heads + kv_heads)), norms, strict=True
        ):
            normal = torch.rsqrt(exact[:, part].square().mean(-1, keepdim=True) + EPS)
            exact[:, part] = exact[:, part] * normal * weight.double()
    turned = torch.cat((-exact[..., dim // 2 :], exact[..., : dim // 2]), -1)
    rotated = exact * angles.cos().double()[:, None] + turned * angles.sin().double()[:, None]
    ours = rows.clone()
    make(dtype).rotate_and_store(ours, angles.cos(), angles.sin(), *norms, layer, slots)
    close(ours.view(27, -1, dim)[:, : heads + kv_heads], rotated[:, : heads + kv_heads])
    parts = ours.view(27, -1, dim)[:, heads:].unflatten(1, (2, kv_heads))
    assert torch.equal(layer[:, :, slots], parts.permute(1, 2, 0, 3))
    untouched = np.setdiff1d(np.arange(50), slots.numpy())
    assert not layer[:, :, untouched].any()


def test_shapes_that_do_not_fit_have_no_kernels():
    shape = KVShape(1, 2, 64)
    assert native_kernels(torch.float64, CPU, 6, shape, (64, 96), EPS) is None
    assert native_kernels(torch.float32, CPU, 6, shape, (60, 96), EPS) is None
    assert native_kernels(torch.float32, CPU, 6, KVShape(1, 2, 80), (64, 96), EPS) is None
    assert 80 not in HEAD_DIMS


def test_without_a_compiler_there_are_none(monkeypatch, tmp_path):
    build.native_library.cache_clear()
    try:
        monkeypatch.setenv("TREESERVE_CACHE", str(tmp_path))
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert build.native_library() is None
        build.native_library.cache_clear()
        monkeypatch.setenv("CXX", "false")
        assert build.native_library() is None
        build.native_library.cache_clear()
        monkeypatch.delenv("CXX")
        monkeypatch.setenv("TREESERVE_NATIVE", "0")
        assert build.native_library() is None
        build.native_library.cache_clear()
        monkeypatch.delenv("TREESERVE_NATIVE")
        assert build.native_library() is not None
        assert [path.suffix for path in (tmp_path / "native").iterdir()] == [".so"]
    finally:
        build.native_library.cache_clear()
