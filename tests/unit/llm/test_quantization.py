"""int8 weights: how they are rounded, what is multiplied with them, and the models made of them."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES, FUSED, MIXTURES, House, random_tree, tiny_model
from torch import nn
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

from actors.decoder import linear
from actors.decoder.layer_weights import Weights
from actors.decoder.linear import Int8Product, NativeProduct, precise_product
from actors.errors import ModelError
from actors.llm.loading import LoadedModel, load_model
from actors.llm.parallel import stage_loading
from actors.llm.parallel.stage_loading import load_stage
from actors.llm.parallel.world import World
from actors.llm.quantization import Int8, check_model
from actors.tree import TokenTree
from tests.unit.llm.invariant_rows import demand_invariant_rows

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
SHAPES = pytest.mark.parametrize(("out", "into"), [(1, 16), (31, 48), (64, 576), (1000, 80)])


def int8_model(path: Path, dtype: torch.dtype) -> LoadedModel:
    return load_stage(path, dtype, CPU, World.of_one(CPU), int8=Int8())


def quantised(dtype: torch.dtype, out: int, into: int, biased: bool = True) -> Weights:
    torch.manual_seed(out)
    bias = torch.randn(out).to(dtype) if biased else None
    return Int8()(Weights(torch.randn(out, into).to(dtype), bias))


def dequantised(weights: Weights) -> torch.Tensor:
    return weights.matrix.double() * weights.scales.double()[:, None]


@DTYPES
def test_a_weight_is_rounded_to_the_nearest_step(dtype):
    torch.manual_seed(0)
    matrix = torch.randn(300, 64).to(dtype)
    matrix[3] = 0
    matrix[5] *= 1e-30
    matrix[7, 9] = -1e4
    weights = Int8()(Weights(matrix))
    assert weights.matrix.dtype == torch.int8
    assert weights.dtype == dtype
    assert weights.matrix.abs().amax() == 127
    largest = matrix.double().abs().amax(1)
    steps = weights.scales.double()
    torch.testing.assert_close(steps[:3], largest[:3] / 127, rtol=torch.finfo(dtype).eps, atol=0)
    off = (dequantised(weights) - matrix.double()).abs().amax(1)
    assert (off <= steps / 2).all()
    assert weights.matrix[7, 9] == -127
    assert not weights.matrix[3].any()


def test_large_matrices_are_worked_on_in_slices(monkeypatch):
    whole = quantised(torch.float32, 64, 576)
    monkeypatch.setattr("actors.llm.quantization._SLICE_SIZE", 1000)
    again = quantised(torch.float32, 64, 576)
    assert torch.equal(whole.matrix, again.matrix)
    assert torch.equal(whole.scales, again.scales)


@DTYPES
@SHAPES
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("native", [True, False])
def test_the_product_is_that_of_the_dequantised_matrix(
    dtype, out, into, biased, native, monkeypatch
):
    """To the last bits of float32, and whatever other rows there are."""
    if not native:
        monkeypatch.setattr(linear, "native_products", lambda dtype, device: None)
    weights = quantised(dtype, out, into, biased)
    product = precise_product(weights)
    assert isinstance(product, NativeProduct if native else Int8Product)
    rows = torch.randn(33, into).to(dtype)
    exact = rows.double() @ dequantised(weights).t()
    if biased:
        exact += weights.bias.double()
    ours = product(rows)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-4)
    for count in (0, 1, 2, 3, 14, 15, 32):
        assert torch.equal(product(rows[:count]), ours[:count])
    rounded = linear.linear(weights)(rows)
    assert torch.equal(rounded, ours.to(dtype))


@DTYPES
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_where_no_kernel_takes_int8_slices_are_expanded(dtype, biased, count, monkeypatch):
    """As on a GPU, with a product of this machine in the place of one that widens."""
    slices = []

    def wide_product(rows, matrix):
        assert len(rows) == max(count, 2)
        assert matrix.dtype == rows.dtype == dtype
        slices.append(len(matrix))
        return rows.float() @ matrix.float().t()

    monkeypatch.setattr(linear, "_EXPANDED_SIZE", 1000)
    monkeypatch.setattr(linear, "_wide_product", wide_product)
    weights = quantised(dtype, 100, 80, biased)
    product = Int8Product(weights.matrix, weights.scales, weights.bias)
    product._expands = True
    rows = torch.randn(count, 80).to(dtype)
    exact = rows.double() @ dequantised(weights).t()
    if biased:
        exact += weights.bias.double()
    for _ in range(2):
        ours = product(rows)
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-4)
    assert slices == [*[12] * 8, 4] * 2


def with_rounded_weights(model: nn.Module) -> nn.Module:
    """A copy with linear layers whose weights are what int8 holds of them, by arithmetic of our
    own."""
    model = copy.deepcopy(model)
    head = model.lm_head if hasattr(model, "lm_head") else model.embed_out
    head.weight = nn.Parameter(head.weight.detach().clone())
    layers = next(part for part in model.modules() if isinstance(part, nn.ModuleList))
    for module in (*layers.modules(), head):
        if isinstance(module, nn.Linear):
            weight = module.weight.detach()
            step = weight.abs().amax(1, keepdim=True) / 127
            module.weight = nn.Parameter((weight / step).round() * step)
    return model


@torch.inference_mode()
def logits_of_a_tree(
    house: House, vocab_size: int, num_nodes: int = 12
) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of a tree behind a text, ours and the expected ones."""
    ids = [7 * place % vocab_size for place in range(1, 20)]
    house.add(0)
    prompt = house.row(0, TokenTree.chain(ids))
    house.step(prompt)
    house.commit(prompt, range(len(ids)))
    row = house.row(0, random_tree(random.Random(2), num_nodes, vocab_size))
    _, logits = house.step(row)
    return logits, house.expected(row)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in MIXTURES])
def test_a_model_computes_what_its_rounded_weights_say(tmp_path, family):
    model = tiny_model(family, torch.float32)
    model.save_pretrained(tmp_path)
    loaded = int8_model(tmp_path, torch.float32)
    assert loaded.model.backend == ("fused" if family in FUSED else "stock")
    assert loaded.quantization == "int8"
    house = House(loaded, with_rounded_weights(model))
    ours, expected = logits_of_a_tree(house, loaded.model.vocab_size)
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
    plain = House(load_model(tmp_path, torch.float32, CPU), model)
    unrounded, _ = logits_of_a_tree(plain, loaded.model.vocab_size)
    assert (ours - unrounded).abs().max() > 1e-2


@pytest.mark.parametrize("family", ["llama", "qwen3", "opt", "gemma3_text"])
def test_in_bfloat16_rows_do_not_depend_on_each_other(tmp_path, family):
    tiny_model(family, torch.bfloat16).save_pretrained(tmp_path)
    demand_invariant_rows(int8_model(tmp_path, torch.bfloat16))


@pytest.mark.model
def test_in_bfloat16_neither_do_those_of_the_embedded_model(smollm2_path):
    demand_invariant_rows(int8_model(smollm2_path, torch.bfloat16))


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_products_in_which_rows_depend_on_each_other_are_not_excused(tmp_path, family, monkeypatch):
    tiny_model(family, torch.bfloat16).save_pretrained(tmp_path)
    loaded = int8_model(tmp_path, torch.bfloat16)
    demand_invariant_rows(loaded)
    for kind in (Int8Product, NativeProduct):
        call = kind.__call__
        monkeypatch.setattr(
            kind, "__call__", lambda self, rows, call=call: call(self, rows) * (1 + len(rows) / 64)
        )
    with pytest.raises(pytest.fail.Exception, match="in products"):
        demand_invariant_rows(loaded)


def test_the_report_counts_bytes_as_they_are_held(tmp_path):
    model = tiny_model("llama", torch.bfloat16)
    model.save_pretrained(tmp_path)
    plain = load_stage(tmp_path, torch.bfloat16, CPU, World.of_one(CPU)).report
    report = int8_model(tmp_path, torch.bfloat16).report
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    saved = sum(part.weight.numel() - 2 * len(part.weight) for part in layers)
    assert plain.num_bytes == 2 * plain.num_parameters
    assert report.num_parameters == plain.num_parameters
    assert report.num_bytes == plain.num_bytes - saved


def test_other_types_have_no_int8(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"float64 .*llm\.quantization"):
        int8_model(tmp_path, torch.float64)


def test_what_is_no_linear_layer_is_refused_by_name(tmp_path):
    config = MixtralConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"mlp\.\S+ of MixtralDecoderLayer is none"):
        check_model(tmp_path, "bfloat16", 1)
    with pytest.raises(ModelError, match="MixtralDecoderLayer"):
        int8_model(tmp_path, torch.bfloat16)


def test_only_fused_models_are_split(tmp_path):
    for family in ("llama", "opt"):
        tiny_model(family).save_pretrained(tmp_path / family)
    check_model(tmp_path / "llama", "bfloat16", 2)
    check_model(tmp_path / "opt", "bfloat16", 1)
    with pytest.raises(ModelError, match=r"opt are not split .*llm\.tensor_parallel"):
        check_model(tmp_path / "opt", "bfloat16", 2)


@pytest.fixture(scope="module")
def rounded_smollm2(smollm2_path: Path) -> nn.Module:
    model = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32)
    return with_rounded_weights(model.eval())


@pytest.mark.model
@pytest.mark.parametrize("backend", ["fused", "stock"])
def test_the_embedded_model(smollm2_path, rounded_smollm2, backend, monkeypatch):
    monkeypatch.setattr(stage_loading, "can_be_fused", lambda config: backend == "fused")
    loaded = int8_model(smollm2_path, torch.float32)
    assert loaded.model.backend == backend
    house = House(loaded, rounded_smollm2, block_tokens=16)
    ours, expected = logits_of_a_tree(house, 49152, num_nodes=5)
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-3)
    assert torch.equal(ours.argmax(-1), expected.argmax(-1))
