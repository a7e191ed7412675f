"""The forward pass of one rank among several: its part of its stage, and what goes to and fro.

Hidden states come from the same shard of the stage before and go to that of the stage behind. Only
the last rank has logits to give.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actors.decoder.batch import StepBatch
from actors.decoder.kv_cache import KVCache
from actors.llm.parallel.parts import Part
from actors.llm.parallel.world import World


class StageModel:
    """One rank's part of a model; a `LanguageModel`.

    Args:
        world: the ranks.
        part: what this one computes.
        vocab_size: of the whole model.
        widths: words of each shard, on the last stage.
        width: of the hidden states.
        dtype: of the hidden states.
    """

    def __init__(
        self,
        world: World,
        part: Part,
        vocab_size: int,
        widths: list[int],
        width: int,
        dtype: torch.dtype,
    ) -> None:
        self._world = world
        self._part = part
        self.backend = part.backend
        self.kv_shape = part.kv_shape
        self.vocab_size = vocab_size
        self._widths = widths
        self._width = width
        self._dtype = dtype

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[outputs, vocab] logits on the rank that answers, none on the others."""
        grid, hidden = self._world.grid, None
        if not grid.is_first_stage:
            hidden = self._world.receive(len(batch.token_ids), self._width, self._dtype)
        out = self._part.forward(batch, cache, hidden)
        if not grid.is_last_stage:
            self._world.pass_on(out)
            return out.new_empty(0, self.vocab_size)
        if len(self._widths) == 1 or not len(out):
            return out
        return self._world.gather(out, self._widths)
