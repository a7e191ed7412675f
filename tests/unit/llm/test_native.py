"""The native decoder against the torch one in float64, and to the last bit against itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.decoder.attention_groups import Span
from actors.decoder.batch import StepBatch
from actors.decoder.decoder import new_decoder
from actors.decoder.kv_cache import KVCache, KVShape
from actors.decoder.layer_weights import DecoderShape, LayerRules, LayerWeights, Weights
from actors.decoder.linear import NativeProduct, precise_product
from actors.decoder.native import build
from actors.decoder.native.decoder import NativeDecoder
from actors.decoder.native.kernels import HEAD_DIMS, native_kernels
from actors.decoder.torch_decoder import TorchDecoder
from actors.llm.quantization import Int8
from actors.tree import TokenTree

CPU = torch.device("cpu")
NUM_SLOTS, VOCAB = 900, 50
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 8e-2}
SHAPE = DecoderShape(6, KVShape(2, 2, 64), 80, 112, 1e-5)
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)
INT8 = pytest.mark.parametrize("int8", [False, True], ids=["", "int8"])

pytestmark = pytest.mark.skipif(build.native_library() is None, reason="no C++ compiler here")


def close(ours: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(
        ours.double(), exact.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


class Rotary:
    """Angles like any model's."""

    def __init__(self, head_dim: int) -> None:
        self._rates = 100.0 ** -(torch.arange(head_dim // 2, dtype=torch.float64) / head_dim)

    def __call__(self, probe: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = (positions[..., None] * self._rates).repeat(1, 1, 2)
        return angles.cos().to(probe.dtype), angles.sin().to(probe.dtype)


def random_layer(shape: DecoderShape, rules: LayerRules, *, biased: bool) -> LayerWeights:
    dim = shape.kv.head_dim
    heads = shape.num_heads + 2 * shape.kv.num_kv_heads

    def weights(out: int, into: int) -> Weights:
        bias = torch.randn(out) * 0.3 if biased else None
        return Weights(torch.randn(out, into) * into**-0.5, bias)

    return LayerWeights(
        1 + 0.3 * torch.randn(shape.hidden),
        weights(heads * dim, shape.hidden),
        rules,
        weights(shape.hidden, shape.num_heads * dim),
        1 + 0.3 * torch.randn(shape.hidden),
        weights(2 * shape.intermediate, shape.hidden),
        weights(shape.hidden, shape.intermediate),
    )


def cast(layer: LayerWeights, dtype: torch.dtype) -> LayerWeights:
    def to(weights: Weights) -> Weights:
        bias = None if weights.bias is None else weights.bias.to(dtype)
        if weights.scales is None:
            return Weights(weights.matrix.to(dtype), bias)
        scales = weights.scales.to(dtype)
        if dtype == torch.float64:
            return Weights(weights.matrix * scales[:, None], bias)
        return Weights(weights.matrix, bias, scales)

    norms = (layer.rules.query_norm, layer.rules.key_norm)
    query_norm, key_norm = (None if norm is None else norm.to(dtype) for norm in norms)
    return LayerWeights(
        layer.input_norm.to(dtype),
        to(layer.qkv),
        replace(layer.rules, query_norm=query_norm, key_norm=key_norm),
        to(layer.out),
        layer.post_norm.to(dtype),
        to(layer.gate_up),
        to(layer.down),
    )


@dataclass
class Model:
    """The same weights as a decoder of a type, and in float64 as that type has them."""

    shape: DecoderShape
    layers: Sequence[LayerWeights]
    embedding: Tensor
    final_norm: Tensor

    @classmethod
    def random(
        cls, shape: DecoderShape = SHAPE, rules: LayerRules | None = None, *, biased: bool = False
    ) -> Model:
        torch.manual_seed(shape.kv.head_dim)
        layers = [
            random_layer(shape, rules or LayerRules(), biased=biased)
            for _ in range(shape.kv.num_layers)
        ]
        embedding = torch.randn(VOCAB, shape.hidden)
        return cls(shape, layers, embedding, 1 + 0.3 * torch.randn(shape.hidden))

    def quantised(self, dtype: torch.dtype) -> Model:
        """The same with int8 weights, but for their rounding."""
        quantise, names = Int8(), ("qkv", "out", "gate_up", "down")
        layers = [
            replace(layer, **{name: quantise(getattr(layer, name)) for name in names})
            for layer in (cast(layer, dtype) for layer in self.layers)
        ]
        return replace(self, layers=layers)

    def native(self, dtype: torch.dtype) -> NativeDecoder:
        rotary = Rotary(self.shape.kv.head_dim)
        decoder = new_decoder(
            self.shape, rotary, self.embedding.to(dtype), self.final_norm.to(dtype)
        )
        assert isinstance(decoder, NativeDecoder)
        for layer in self.layers:
            decoder.add_layer(cast(layer, dtype))
        return decoder

    def exact(self, dtype: torch.dtype) -> TorchDecoder:
        decoder = TorchDecoder(
            self.shape,
            Rotary(self.shape.kv.head_dim),
            self.embedding.to(dtype).double(),
            self.final_norm.to(dtype).double(),
        )
        for layer in self.layers:
            decoder.add_layer(cast(cast(layer, dtype), torch.float64))
        return decoder

    def cache(self, dtype: torch.dtype) -> KVCache:
        return KVCache(self.shape.kv, 1, NUM_SLOTS, dtype, CPU)


def batch_of(parts: Sequence[tuple[TokenTree, int, np.ndarray, int]]) -> StepBatch:
    """A step of trees, each with where it starts, its slots and its first row's node."""
    spans: list[Span] = []
    first_row = 0
    for tree, start, places, first_node in parts:
        spans.append(Span(tree, start, first_row, places, first_node))
        first_row += spans[-1].num_rows
    return StepBatch.of(spans, np.empty(0, dtype=np.int64), NUM_SLOTS + 1, CPU)


def random_tree(chance: random.Random, size: int) -> TokenTree:
    parents = [-1, *(max(0, chance.randrange(node - 4, node)) for node in range(1, size))]
    return TokenTree(tuple(range(size)), tuple(parents))


def chain(chance: random.Random, size: int) -> TokenTree:
    return TokenTree.chain(chance.randrange(VOCAB) for _ in range(size))


def scattered(chance: random.Random, *lengths: int) -> list[np.ndarray]:
    """Slots of their own for sequences."""
    slots = np.asarray(chance.sample(range(NUM_SLOTS), sum(lengths)), dtype=np.int64)
    return np.split(slots, np.cumsum(lengths)[:-1])


SHAPES = [
    (SHAPE, LayerRules(), False),
    (DecoderShape(9, KVShape(1, 3, 64), 576, 1536, 1e-5), LayerRules(), False),
    (DecoderShape(6, KVShape(2, 1, 32), 48, 80, 1e-6), LayerRules(window=20), True),
    (DecoderShape(2, KVShape(2, 2, 96), 64, 48, 1e-5), LayerRules(window=70), True),
    (
        DecoderShape(8, KVShape(2, 2, 128), 96, 64, 1e-5),
        LayerRules(torch.linspace(0.5, 1.5, 128), torch.linspace(1.5, 0.5, 128)),
        False,
    ),
]


@DTYPES
@INT8
@pytest.mark.parametrize(("shape", "rules", "biased"), SHAPES)
def test_it_computes_what_the_torch_decoder_computes(dtype, int8, shape, rules, biased):
    """Prefills, then trees and chains of all lengths in one step; states and KV."""
    model, chance = Model.random(shape, rules, biased=biased), random.Random(shape.hidden)
    model = model.quantised(dtype) if int8 else model
    native, exact = model.native(dtype), model.exact(dtype)
    ours, theirs = model.cache(dtype), model.cache(torch.float64)
    trees = [
        TokenTree.chain(range(5)),
        random_tree(chance, 17),
        TokenTree.chain([7]),
        chain(chance, 90),
        random_tree(chance, 50),
    ]
    starts = [0, 130, 64, 37, 200]
    places = scattered(
        chance, *(start + len(tree) for start, tree in zip(starts, trees, strict=True))
    )
    prefill = batch_of(
        [
            (chain(chance, start), 0, slots, 0)
            for start, slots in zip(starts, places, strict=True)
            if start
        ]
    )
    close(native.forward(prefill, ours), exact.forward(prefill, theirs), dtype)
    theirs.data.copy_(ours.data)  # a step is to be judged by itself
    step = batch_of([(*part, 0) for part in zip(trees, starts, places, strict=True)])
    close(native.forward(step, ours), exact.forward(step, theirs), dtype)
    close(ours.data, theirs.data, dtype)
    untouched = np.setdiff1d(np.arange(NUM_SLOTS + 1), np.concatenate(places))
    assert not ours.data[:, :, :, untouched].any()


@DTYPES
@INT8
def test_a_row_is_the_same_to_the_last_bit_whatever_stands_around_it(dtype, int8):
    """A text as a whole, row by row, and as the path through a tree beside another sequence."""
    model, chance = Model.random(), random.Random(1)
    model = model.quantised(dtype) if int8 else model
    decoder, start, path = model.native(dtype), 83, 12
    text = [chance.randrange(VOCAB) for _ in range(start + path)]

    def fresh() -> tuple[KVCache, np.ndarray, np.ndarray]:
        return model.cache(dtype), *scattered(chance, 200, 60)

    cache, slots, _ = fresh()
    whole = decoder.forward(batch_of([(TokenTree.chain(text), 0, slots, 0)]), cache)
    kv = cache.data[:, :, :, slots[: len(text)]]

    cache, slots, other = fresh()
    alone = [
        decoder.forward(batch_of([(TokenTree.chain([token]), place, slots, 0)]), cache)
        for place, token in enumerate(text)
    ]
    assert torch.equal(torch.cat(alone), whole)
    assert torch.equal(cache.data[:, :, :, slots[: len(text)]], kv)

    wrong = [[*text[start : start + depth], VOCAB - 1] for depth in range(path)]
    tree = TokenTree.from_paths([*wrong, text[start:]])
    nodes = list(tree.path(len(tree) - 1))
    assert list(tree.path_tokens(nodes[-1])) == text[start:]
    beside = batch_of([(random_tree(chance, 7), 0, other, 0), (tree, start, slots, 0)])
    assert torch.equal(decoder.forward(beside, cache)[7:][nodes], whole[start:])


@DTYPES
@pytest.mark.parametrize("num_rows", [1, 2, 3, 13, 14, 15, 28, 29, 57])
def test_any_number_of_rows(dtype, num_rows):
    """A step is cut into blocks of rows."""
    model, chance = Model.random(), random.Random(num_rows)
    decoder, text = model.native(dtype), chain(chance, 60)
    (slots,) = scattered(chance, 60)
    whole = decoder.forward(batch_of([(text, 0, slots, 0)]), model.cache(dtype))
    first = TokenTree.chain(text.token_ids[:num_rows])
    part = decoder.forward(batch_of([(first, 0, slots, 0)]), model.cache(dtype))
    assert torch.equal(part, whole[:num_rows])


@DTYPES
@pytest.mark.parametrize("window", [None, 9])
def test_a_tree_in_two_steps_is_the_tree_in_one(dtype, window):
    """The second step has the last nodes as rows and finds the first ones in the cache."""
    model = Model.random(rules=LayerRules(window=window))
    chance, decoder, start, size, first_node = random.Random(2), model.native(dtype), 37, 21, 8
    for tree in (random_tree(chance, size), TokenTree.chain(range(size))):
        cache = model.cache(dtype)
        (slots,) = scattered(chance, start + size)
        decoder.forward(batch_of([(chain(chance, start), 0, slots, 0)]), cache)
        whole = decoder.forward(batch_of([(tree, start, slots, 0)]), cache)
        later = decoder.forward(batch_of([(tree, start, slots, first_node)]), cache)
        assert torch.equal(later, whole[first_node:])


@DTYPES
def test_layers_in_two_stages_are_the_layers_in_one(dtype):
    model, chance = Model.random(), random.Random(7)
    shape = replace(SHAPE, kv=replace(SHAPE.kv, num_layers=1))
    stages = [
        new_decoder(shape, Rotary(64), torch.empty(0, SHAPE.hidden, dtype=dtype), norm)
        for norm in (None, model.final_norm.to(dtype))
    ]
    for stage, layer in zip(stages, model.layers, strict=True):
        assert isinstance(stage, NativeDecoder)
        stage.add_layer(cast(layer, dtype))
    (places,) = scattered(chance, 30)
    step = batch_of([(random_tree(chance, 30), 0, places, 0)])
    whole, first, second = (
        KVCache(kv, 1, NUM_SLOTS, dtype, CPU) for kv in (SHAPE.kv, *[shape.kv] * 2)
    )
    hidden = model.embedding.to(dtype)[step.token_ids]
    hidden = stages[1].run(stages[0].run(hidden, step, first), step, second)
    assert torch.equal(hidden, model.native(dtype).forward(step, whole))
    assert torch.equal(whole.data, torch.cat((first.data, second.data)))


def test_activation_over_its_whole_range():
    """Gates far out neither overflow nor turn into NaN."""
    for scale in (1e2, 1e4):
        model = Model.random()
        layers = [
            replace(layer, gate_up=Weights(layer.gate_up.matrix * scale)) for layer in model.layers
        ]
        model.layers = layers
        (slots,) = scattered(random.Random(3), 30)
        batch = batch_of([(TokenTree.chain(range(30)), 0, slots, 0)])
        ours = model.native(torch.float32).forward(batch, model.cache(torch.float32))
        exact = model.exact(torch.float32).forward(batch, model.cache(torch.float64))
        torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=1e-3)


@DTYPES
@pytest.mark.parametrize(("out", "into"), [(1, 16), (31, 48), (64, 576), (1000, 80)])
@pytest.mark.parametrize("biased", [True, False])
def test_product_is_not_rounded_to_the_type_of_its_elements(dtype, out, into, biased):
    torch.manual_seed(out)
    matrix, rows = torch.randn(out, into).to(dtype), torch.randn(17, into).to(dtype)
    bias = torch.randn(out) if biased else None
    product = precise_product(Weights(matrix, bias))
    assert isinstance(product, NativeProduct)
    exact = rows.double() @ matrix.double().t() + (0 if bias is None else bias.double())
    ours = product(rows)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-4)
    assert torch.equal(torch.cat([product(row[None]) for row in rows]), ours)


@DTYPES
def test_any_int8_is_itself(dtype):
    """Every weight that there is, at every place of a panel and of a pair."""
    torch.manual_seed(1)
    matrix = torch.arange(-127, 128).repeat(64)[: 40 * 254].view(40, 254).to(torch.int8)
    scales, bias = torch.rand(40).to(dtype), torch.randn(40)
    product = precise_product(Weights(matrix, bias, scales))
    rows = torch.eye(254)[:, torch.randperm(254)].to(dtype)
    exact = (rows.double() @ matrix.double().t()) * scales.double() + bias.double()
    torch.testing.assert_close(product(rows).double(), exact, rtol=1e-6, atol=1e-6)


def test_shapes_that_do_not_fit_have_no_kernels():
    assert native_kernels(torch.float32, CPU, SHAPE) is not None
    assert native_kernels(torch.float64, CPU, SHAPE) is None
    assert native_kernels(torch.float32, CPU, replace(SHAPE, hidden=60)) is None
    assert native_kernels(torch.float32, CPU, replace(SHAPE, intermediate=60)) is None
    assert native_kernels(torch.float32, CPU, replace(SHAPE, kv=KVShape(1, 2, 80))) is None
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
