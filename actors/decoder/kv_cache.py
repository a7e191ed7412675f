"""The paged KV cache: one tensor for all layers, and how large to make it.

Layout: [layers, 2, kv_heads, slots + 1, head_dim]: a head's keys lie side by side, a step writes K
and V with one copy, and commits move the KV of all layers and requests at once. The last slot is
scratch, for padding rows. Which slots belong to whom is the caller's business.

Assumes that all layers have K and V of one shape; models with others are refused by loading.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from actors.errors import ConfigError

Slots = npt.NDArray[np.int64]
_AUTO_SHARE_CPU = 0.2
_AUTO_SHARE_CUDA = 0.8
_AUTO_CONTEXTS = 32
"""`auto` never takes more than this many full contexts."""


@dataclass(frozen=True)
class KVShape:
    """What the KV of one token looks like."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def token_bytes(self, dtype: torch.dtype) -> int:
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True)
class SlotMoves:
    """KV to copy before anything is written: from `source` to `target`, element by element."""

    source: Slots
    target: Slots


class KVCache:
    """K and V of every slot in every layer; zero until written.

    Attributes:
        data: [layers, 2, kv_heads, slots + 1, head_dim].
        layers: `data`, layer by layer.
    """

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        size = (
            shape.num_layers,
            2,
            shape.num_kv_heads,
            self.num_slots + 1,
            shape.head_dim,
        )
        self.data = _zeros(size, dtype, device)
        self.layers = self.data.unbind(0)

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_tokens

    @property
    def scratch_slot(self) -> int:
        return self.num_slots

    def move(self, moves: SlotMoves) -> None:
        """Copy KV between slots; sources are read before any target is written."""
        if len(moves.source):
            source, target = self._index(moves.source), self._index(moves.target)
            self.data.index_copy_(3, target, self.data.index_select(3, source))

    def clear(self, slots: Slots) -> None:
        """Zero slots that change hands: masked keys still meet the arithmetic, where an infinity
        or a NaN that another request left behind would spread."""
        if len(slots):
            self.data.index_fill_(3, self._index(slots), 0)

    def _index(self, slots: Slots) -> torch.Tensor:
        return torch.from_numpy(slots).to(self.data.device)


def num_blocks_for(
    shape: KVShape,
    block_tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    memory_bytes: int | None,
    max_context_tokens: int,
    num_sharing: int = 1,
) -> int:
    """How many blocks fit a budget.

    Args:
        memory_bytes: the budget; None takes a share of the memory that is free now, at most as
            much as 32 requests of full length can use.
        num_sharing: how many caches share the free memory.

    Raises:
        ConfigError: not even one block fits.
    """
    block_bytes = shape.token_bytes(dtype) * block_tokens
    if memory_bytes is None:
        share = _AUTO_SHARE_CUDA if device.type == "cuda" else _AUTO_SHARE_CPU
        contexts_bytes = _AUTO_CONTEXTS * max_context_tokens * shape.token_bytes(dtype)
        memory_bytes = min(int(share * _free_bytes(device)) // num_sharing, contexts_bytes)
    num_blocks = memory_bytes // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            [f"{memory_bytes} bytes of KV cache do not hold one block of {block_bytes} bytes"]
        )
    return num_blocks


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    # numpy's zeros are mapped on first touch: a large cache costs only what is used of it.
    storage = np.zeros(int(np.prod(size)) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(storage).view(dtype).view(size)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError(["kv_memory_bytes: auto needs MemAvailable in /proc/meminfo"])
