"""Moves that overlap, and how many blocks a budget holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.decoder.kv_cache import KVCache, KVShape, SlotMoves, num_blocks_for
from actors.errors import ConfigError

SHAPE = KVShape(num_layers=2, num_kv_heads=3, head_dim=4)
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("source", "target"),
    [([2, 3, 4], [1, 2, 3]), ([1, 2, 3], [2, 3, 4]), ([5, 1], [1, 5]), ([], [])],
)
def test_moves_read_everything_before_they_write(source, target):
    cache = KVCache(SHAPE, 2, 4, torch.float32, CPU)
    cache.data.copy_(torch.randn_like(cache.data))
    before = cache.data.clone()
    cache.move(SlotMoves(np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)))
    expected = before.clone()
    expected[:, :, :, target] = before[:, :, :, source]
    assert torch.equal(cache.data, expected)


def test_blocks_by_budget():
    token_bytes = 2 * 2 * 3 * 4 * 2
    assert SHAPE.token_bytes(torch.bfloat16) == token_bytes

    def blocks(memory_bytes):
        return num_blocks_for(SHAPE, 16, torch.bfloat16, CPU, memory_bytes, 1024)

    assert blocks(16 * token_bytes * 10) == 10
    assert blocks(16 * token_bytes * 10 - 1) == 9
    with pytest.raises(ConfigError):
        blocks(16 * token_bytes - 1)


def test_auto_stops_at_what_full_contexts_can_use():
    assert num_blocks_for(SHAPE, 16, torch.bfloat16, CPU, None, 64) == 32 * 64 // 16
