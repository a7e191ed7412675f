"""Weights are found in files that name and cut them otherwise, as transformers finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import tiny_model
from transformers.core_model_loading import Split, WeightConverter

from actors.errors import ModelError
from actors.llm.loading import read_config
from actors.llm.parallel import weight_reader
from actors.llm.parallel.skeleton import Skeleton
from actors.llm.parallel.weight_reader import WeightNames, WeightReader
from actors.weight_files import weight_files

CPU = torch.device("cpu")
QKV = [f"self_attn.{kind}_proj.weight" for kind in "qkv"]


def open_reader(folder: Path) -> tuple[Skeleton, WeightReader]:
    skeleton = Skeleton(read_config(folder), torch.float32)
    names = WeightNames(skeleton.model)
    return skeleton, WeightReader(weight_files(folder), torch.float32, CPU, names)


def filled(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of the layers, by the model's names."""
    skeleton, reader = open_reader(folder)
    for index, layer in enumerate(skeleton.layers):
        prefix = f"{skeleton.layers_name}.{index}"
        reader.fill(layer, {name: f"{prefix}.{name}" for name in layer.state_dict()})
    return {
        name: weight
        for name, weight in skeleton.model.state_dict().items()
        if name.startswith(skeleton.layers_name)
    }


def stored_names(folder: Path) -> list[str]:
    names: list[str] = []
    for file in weight_files(folder):
        with safe_open(file, "pt") as content:
            names += content.keys()
    return names


def many_experts() -> transformers.PreTrainedModel:
    """So many that their order in files, by name, is not that of their numbers."""
    config = transformers.MixtralConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        num_local_experts=12,
    )
    return transformers.MixtralForCausalLM(config)


@pytest.mark.parametrize("max_shard_size", ["5GB", "6KB"])
def test_experts_that_are_stored_one_by_one_are_stacked(tmp_path, max_shard_size):
    """In one file, and in several, over which the experts of a layer are spread."""
    many_experts().save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert "model.layers.1.block_sparse_moe.experts.11.w3.weight" in stored_names(tmp_path)
    wanted = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    found = filled(tmp_path)
    assert found["model.layers.1.mlp.experts.gate_up_proj"].shape == (12, 16, 16)
    for name, weight in found.items():
        assert torch.equal(weight, wanted[name]), name


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_experts_that_are_stored_as_the_model_has_them(tmp_path, family):
    model = tiny_model(family, torch.float32)
    model.save_pretrained(tmp_path)
    save_file(model.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    for name, weight in filled(tmp_path).items():
        assert torch.equal(weight, model.state_dict()[name]), name


def edit(folder: Path, **changes: torch.Tensor | None) -> None:
    """Change or remove weights of expert 2 in layer 1."""
    weights = load_file(folder / "model.safetensors")
    for part, weight in changes.items():
        name = f"model.layers.1.block_sparse_moe.experts.2.{part}.weight"
        del weights[name]
        if weight is not None:
            weights[name] = weight
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_a_missing_expert_is_told(tmp_path):
    tiny_model("mixtral", torch.float32).save_pretrained(tmp_path)
    edit(tmp_path, w2=None)
    with pytest.raises(ModelError, match=r"mismatched keys: .*\s*size mismatch for .*down_proj"):
        filled(tmp_path)


def test_what_cannot_be_converted_is_told_by_name_and_reason(tmp_path):
    tiny_model("mixtral", torch.float32).save_pretrained(tmp_path)
    edit(tmp_path, w2=torch.zeros(3, 3))
    with pytest.raises(
        ModelError,
        match=r"layers.1.mlp.experts.down_proj cannot be converted from .*experts.0.w2.*: stack",
    ):
        filled(tmp_path)


def test_one_stored_weight_may_become_several(tmp_path, monkeypatch):
    """As for models whose queries, keys and values are joined in their files."""
    converter = WeightConverter("self_attn.qkv.weight", list(QKV), [Split(dim=0)])
    monkeypatch.setattr(weight_reader, "get_model_conversion_mapping", lambda model: [converter])
    model = tiny_model("llama", torch.float32)
    model.save_pretrained(tmp_path)
    weights = model.state_dict()
    for index in range(3):
        prefix = f"model.layers.{index}."
        joined = torch.cat([weights.pop(prefix + name) for name in QKV])
        weights[f"{prefix}self_attn.qkv.weight"] = joined
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    for name, weight in filled(tmp_path).items():
        assert torch.equal(weight, model.state_dict()[name]), name


def test_rows_are_not_read_from_what_would_have_to_be_converted(tmp_path):
    tiny_model("mixtral", torch.float32).save_pretrained(tmp_path)
    _, reader = open_reader(tmp_path)
    with pytest.raises(ModelError, match="gate_up_proj would have to be converted"):
        reader.rows_of("model.layers.0.mlp.experts.gate_up_proj")
    assert torch.equal(
        reader.rows_of("lm_head.weight")([3, 1]),
        load_file(tmp_path / "model.safetensors")["lm_head.weight"][[3, 1]],
    )
