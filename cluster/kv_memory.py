"""Whether the configured KV memory can work, from a model's `config.json` alone.

So that a wrong number is told of before anything is started. What a rank decides itself (`auto`,
models whose sizes are not told in the usual words) is left to it.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from actors.errors import ConfigError
from cluster.config import Config
from cluster.model_sizes import read_sizes

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


def check_kv_memory(config: Config, folder: Path) -> None:
    """Raise ConfigError if `scheduler.kv_memory_bytes` is less than a block or more than there is.

    Args:
        folder: of the model.
    """
    memory = config.scheduler.kv_memory_bytes
    if memory == "auto":
        return
    token_bytes = kv_token_bytes(folder, config.model.dtype)
    if token_bytes is not None:
        # Of one rank: layers are split over stages, heads over shards.
        num_ranks = config.llm.tensor_parallel * config.llm.pipeline_parallel
        block_bytes = token_bytes * config.scheduler.kv_block_tokens // num_ranks
        if memory < block_bytes:
            raise _problem(f"{memory} bytes do not hold one block of {block_bytes} bytes")
    total = psutil.virtual_memory().total
    if memory > total:
        raise _problem(f"{memory} bytes are more than the {total} bytes of this machine")


def kv_token_bytes(folder: Path, dtype: str) -> int | None:
    """Bytes of keys and values of one token in all layers; None if the file does not say."""
    sizes = read_sizes(folder)
    if sizes is None:
        return None
    return sizes.num_layers * 2 * sizes.num_key_heads * sizes.head_dim * DTYPE_BYTES[dtype]


def _problem(what: str) -> ConfigError:
    return ConfigError([f"scheduler.kv_memory_bytes: {what}"])
