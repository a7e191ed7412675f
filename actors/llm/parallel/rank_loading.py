"""One of the several ranks of an LLM, or one that streams its weights: from its place in the grid
to a rank that runs steps."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from actors.llm.loading import DTYPES
from actors.llm.offload.opening import open_stream
from actors.llm.parallel.grid import Grid
from actors.llm.parallel.stage_loading import load_stage
from actors.llm.parallel.world import World
from actors.llm.quantization import Int8
from actors.llm.rank import Rank, RankOptions, make_rank
from actors.meeting import Meeting


def load_rank_of_several(options: RankOptions, grid: Grid, meeting: Meeting) -> Rank:
    """Meet the other ranks and load this one's part; all of them do so together.

    Raises:
        ModelError: the model cannot be served by so many ranks.
        PeerUnavailable: the other ranks did not come.
        ConfigError: the memory does not hold one KV block.
    """
    device = torch.device(options.device)
    world = World.join(grid, meeting, options.llm.start_timeout_s, device)
    on_cpu = device.type == "cpu"
    num_threads = options.llm.num_threads
    if num_threads is None and on_cpu and grid.num_ranks > 1:
        # Ranks of a machine work at the same time, on the same cores.
        num_threads = max(1, (os.cpu_count() or 1) // world.num_local)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if not grid.answers:
        options = replace(options, vocabulary=None)  # draws nothing, so needs no grammars
    dtype = DTYPES[options.dtype]
    stream = open_stream(options.llm, dtype, device, world)
    int8 = Int8() if options.llm.quantization == "int8" else None
    loaded = load_stage(options.path, dtype, device, world, stream, int8)
    return make_rank(loaded, options, world.num_local if on_cpu else 1)
