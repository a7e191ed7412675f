"""What cannot be split over ranks is refused before anything is cut."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny_model

from actors.errors import ModelError
from actors.llm.parallel.grid import Grid
from actors.llm.parallel.sharding import Sharding
from actors.llm.parallel.world import World


def sharding_of(family: str, num_shards: int) -> tuple[Sharding, torch.nn.Module]:
    model = tiny_model(family)
    world = World(Grid(num_shards, 1, 0), None, 1, torch.device("cpu"))
    return Sharding(world, model), model.model.layers[0]


def test_more_ranks_than_key_heads() -> None:
    with pytest.raises(ModelError, match=r"2 key heads .* over 3 ranks"):
        sharding_of("llama", 3)


def test_a_product_with_fewer_outputs_than_ranks() -> None:
    """A gate of one output, which DeepSpeed would give to the first rank alone."""
    sharding, layer = sharding_of("qwen2_moe", 2)
    with pytest.raises(ModelError, match=r"mlp\.shared_expert_gate of .* too narrow for 2 ranks"):
        sharding.layer(layer)
