"""KV memory that cannot work is told of from the model's config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.errors import ConfigError
from cluster.config import Config, parse_config
from cluster.kv_memory import check_kv_memory, kv_token_bytes

SIZES = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 32}


def folder(path: Path, content: object) -> Path:
    (path / "config.json").write_text(json.dumps(content))
    return path


def config(memory: object, dtype: str = "bfloat16", num_stages: int = 1) -> Config:
    content = {
        "model": {"dtype": dtype},
        "llm": {"pipeline_parallel": num_stages},
        "scheduler": {"kv_memory_bytes": memory, "kv_block_tokens": 16},
    }
    return parse_config(json.dumps(content))


@pytest.mark.parametrize(
    ("content", "token_bytes"),
    [
        (SIZES, 3 * 2 * 4 * 8 * 2),
        (SIZES | {"num_key_value_heads": 2}, 3 * 2 * 2 * 8 * 2),
        (SIZES | {"head_dim": 16}, 3 * 2 * 4 * 16 * 2),
        ({"text_config": SIZES}, 3 * 2 * 4 * 8 * 2),
        ({"n_layer": 3}, None),
        ([], None),
    ],
)
def test_bytes_of_a_token(tmp_path: Path, content: object, token_bytes: int | None) -> None:
    assert kv_token_bytes(folder(tmp_path, content), "bfloat16") == token_bytes


def test_it_is_what_the_cache_itself_takes(smollm2_path: Path) -> None:
    import torch

    from actors.decoder.kv_cache import KVShape

    shape = KVShape(num_layers=30, num_kv_heads=3, head_dim=64)
    assert kv_token_bytes(smollm2_path, "float32") == shape.token_bytes(torch.float32)


def test_less_than_a_block_is_refused(tmp_path: Path) -> None:
    block = 16 * 3 * 2 * 4 * 8 * 2
    check_kv_memory(config(block), folder(tmp_path, SIZES))
    check_kv_memory(config(block // 3, num_stages=3), tmp_path)
    check_kv_memory(config("auto"), tmp_path)
    for memory, dtype in ((block - 1, "bfloat16"), (block, "float32")):
        with pytest.raises(ConfigError, match=r"kv_memory_bytes.*one block"):
            check_kv_memory(config(memory, dtype), tmp_path)


def test_more_than_the_machine_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of this machine"):
        check_kv_memory(config(1 << 60), folder(tmp_path, {"n_layer": 3}))
