"""What is loaded, and what is refused with a reason."""

from __future__ import annotations

import json
import random

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import House, random_tree, tiny_model

from actors.errors import ModelError
from actors.llm.loading import load_model

CPU = torch.device("cpu")


def saved(tmp_path, model):
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def folder(tmp_path):
    return saved(tmp_path, tiny_model("llama", torch.float32))


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(folder, reason):
    with pytest.raises(ModelError, match=reason) as caught:
        load_model(folder, torch.float32, CPU)
    assert folder.name in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("family", "backend"), [("llama", "fused"), ("opt", "stock")])
def test_loads(tmp_path, family, backend, dtype):
    model = tiny_model(family, torch.float32)
    loaded = load_model(saved(tmp_path, model), dtype, CPU)
    assert loaded.model.backend == backend
    assert loaded.model.vocab_size == 61
    assert loaded.max_context_tokens == 256
    assert loaded.num_parameters == sum(weight.numel() for weight in model.parameters())
    assert loaded.dtype == dtype


def test_the_hash_is_of_the_weights(tmp_path):
    first = saved(tmp_path / "a", tiny_model("llama", torch.float32))
    second = saved(tmp_path / "b", tiny_model("llama", torch.float32))
    edit_config(second, max_position_embeddings=128)
    hashes = {load_model(each, torch.float32, CPU).weights_hash for each in (first, second)}
    assert len(hashes) == 1
    weights = load_file(second / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, second / "model.safetensors", {"format": "pt"})
    hashes.add(load_model(second, torch.float32, CPU).weights_hash)
    assert len(hashes) == 2


def test_no_folder(tmp_path):
    refused(tmp_path / "absent", "no config.json")


def test_damaged_config(folder):
    (folder / "config.json").write_text("{")
    refused(folder, "config.json cannot be used")


def test_code_in_the_folder_is_not_run(folder):
    edit_config(
        folder,
        model_type="own",
        auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    )
    (folder / "own.py").write_text("raise SystemExit('this must not run')")
    refused(folder, "config.json cannot be used")


def test_pickled_weights_only(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    refused(folder, "not in safetensors")


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, "missing: model.safetensors")


def test_a_shard_is_missing(folder):
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "missing: model-00001-of-00002")


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": 3}'])
def test_damaged_index(folder, index):
    (folder / "model.safetensors.index.json").write_text(index)
    refused(folder, "damaged")


@pytest.mark.parametrize("size", [4, 100, 20000])
def test_cut_short(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refused(folder, "cannot be read")


def test_a_weight_is_missing(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused(folder, r"missing keys: model.layers.1.self_attn.q_proj.weight")


def test_a_weight_has_another_shape(folder):
    edit_config(folder, intermediate_size=40)
    refused(folder, "mismatched|cannot be read")


def test_quantised(folder):
    edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    refused(folder, "quantised")


def test_rope_that_changes_with_length(folder):
    edit_config(folder, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    refused(folder, "'dynamic' rope")


def test_layers_without_attention(folder):
    edit_config(folder, model_type="qwen3", layer_types=["linear_attention"] * 3)
    refused(folder, "linear_attention")


def test_encoder_decoder(tmp_path):
    config = transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    refused(saved(tmp_path, transformers.T5ForConditionalGeneration(config)), "encoder-decoder")


def test_no_causal_language_model(tmp_path):
    config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    refused(saved(tmp_path, transformers.ViTModel(config)), "no causal language model")


def test_recurrent_state(tmp_path):
    config = transformers.RwkvConfig(vocab_size=61, hidden_size=16, num_hidden_layers=2)
    refused(saved(tmp_path, transformers.RwkvForCausalLM(config)), "recurrent state")


def test_attention_that_is_not_ours(tmp_path):
    """BLOOM biases its scores by distance (ALiBi), inside attention code of its own."""
    config = transformers.BloomConfig(vocab_size=61, hidden_size=16, n_layer=1, n_head=2)
    edit = saved(tmp_path, transformers.BloomForCausalLM(config))
    refused(edit, "attention")


def test_attention_sinks(tmp_path):
    config = transformers.GptOssConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    refused(saved(tmp_path, transformers.GptOssForCausalLM(config)), "not standard: .*s_aux")


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("stacked", [False, True])
def test_experts(tmp_path, family, stacked):
    """Stored one by one, as they are released, and as the model has them; computed by grouped
    products, and a tree still equals its paths, as the model's own code computes them."""
    model = tiny_model(family, torch.float32)
    saved(tmp_path, model)
    if stacked:
        save_file(model.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    house = House(load_model(tmp_path, torch.float32, CPU), model)
    house.add(0)
    row = house.row(0, random_tree(random.Random(5), 17))
    _, logits = house.step(row)
    torch.testing.assert_close(logits, house.expected(row), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_a_rounding_that_chooses_other_experts_is_no_other_attention(tmp_path, family):
    """In bfloat16, and with experts that differ as much as these: their choice is a leap."""
    torch.manual_seed(1)
    for seed in range(4):
        model = tiny_model(family, torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.5)
        folder = saved(tmp_path / str(seed), model)
        assert load_model(folder, torch.bfloat16, CPU).model.backend == "stock"
