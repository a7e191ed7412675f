"""A model's sizes, from its `config.json` alone, and whether it can be split as is asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.errors import ConfigError
from cluster.config import Config

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""What the number of a layer's experts is called."""


@dataclass(frozen=True)
class ModelSizes:
    """Of the model's layers.

    Attributes:
        head_dim: values of a head's key, and of its value.
        num_experts: of a layer that has any; 0 for a model without.
    """

    num_layers: int
    num_key_heads: int
    head_dim: int
    num_experts: int


def read_sizes(folder: Path) -> ModelSizes | None:
    """Sizes of the model in a folder; None if its file does not say them in the usual words."""
    try:
        content: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        sizes = content.get("text_config", content)
        heads = sizes["num_attention_heads"]
        head_dim = sizes.get("head_dim") or sizes["hidden_size"] // heads
        key_heads = sizes.get("num_key_value_heads") or heads
        experts = next((sizes[name] for name in EXPERT_COUNTS if sizes.get(name)), 0)
        layers = sizes["num_hidden_layers"]
        return ModelSizes(int(layers), int(key_heads), int(head_dim), int(experts))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def check_split(config: Config, folder: Path) -> None:
    """Raise ConfigError if the model has too few heads or layers for its ranks."""
    sizes = read_sizes(folder)
    if sizes is None:
        return  # the ranks will tell
    shards, stages = config.llm.tensor_parallel, config.llm.pipeline_parallel
    problems = []
    if sizes.num_key_heads < shards:
        problems.append(
            f"llm.tensor_parallel: {sizes.num_key_heads} key heads cannot be split over "
            f"{shards} ranks"
        )
    if sizes.num_layers < stages:
        problems.append(
            f"llm.pipeline_parallel: {sizes.num_layers} layers cannot be split into {stages} stages"
        )
    if problems:
        raise ConfigError(problems)
