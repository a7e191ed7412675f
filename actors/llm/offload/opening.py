"""From the configuration to what streams weights, or a clear reason why not."""

from __future__ import annotations

from pathlib import Path

import torch

from actors.llm.config import LLMConfig
from actors.llm.offload.async_io import load_async_io
from actors.llm.offload.streaming import OpenStream, PieceSizes, Streaming
from actors.llm.offload.swap_folder import claim_swap_folder
from actors.llm.parallel.world import World
from actors.paths import cache_root

SWAP_FOLDER = "offload"
"""In the cache, where the configuration names no folder."""


def open_stream(
    llm: LLMConfig, dtype: torch.dtype, device: torch.device, world: World
) -> OpenStream | None:
    """What opens the stream that the configuration asks for; None if weights stay on the device.

    Args:
        dtype, device: of the model.
        world: whose stages have one rank each.
    """
    if llm.offload == "none":
        return None

    def from_memory(sizes: PieceSizes) -> Streaming:
        return Streaming(sizes, dtype, device, None, world.stage_group)

    def from_files(sizes: PieceSizes) -> Streaming:
        base = Path(llm.offload_dir).expanduser() if llm.offload_dir else cache_root() / SWAP_FOLDER
        load_async_io()
        folder = claim_swap_folder(base, sizes.total * dtype.itemsize)
        return Streaming(sizes, dtype, device, folder, world.stage_group)

    return from_files if llm.offload == "nvme" else from_memory
