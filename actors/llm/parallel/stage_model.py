"""The forward pass of one rank among several: its share of its stage's layers.

Hidden states come from the same shard of the stage before and go to that of the stage behind. Only
the last rank has logits to give.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from actors.decoder.batch import StepBatch
from actors.decoder.decoder import Layers
from actors.decoder.kv_cache import KVCache, KVShape
from actors.decoder.linear import Head
from actors.llm.fused_llama import chosen_logits
from actors.llm.parallel.world import World


@dataclass(frozen=True)
class StageHead:
    """What stands behind the last layer.

    Attributes:
        norm: [hidden] weight.
        words: the head of this shard's words.
        widths: words of each shard.
    """

    norm: Tensor
    words: Head
    widths: list[int]


class StageModel:
    """One rank's part of a model.

    Args:
        world: the ranks.
        embedding: of token ids, on the first stage.
        layers: of the stage.
        head: on the last stage.
        kv_shape: of this rank's KV of one token.
        vocab_size: of the whole model.
        width: of the hidden states.
        dtype: of the hidden states.
    """

    backend = "fused"

    def __init__(
        self,
        world: World,
        embedding: nn.Module | None,
        layers: Layers,
        head: StageHead | None,
        kv_shape: KVShape,
        vocab_size: int,
        width: int,
        dtype: torch.dtype,
    ) -> None:
        self._world = world
        self._embedding = embedding
        self._layers = layers
        self._head = head
        self.kv_shape = kv_shape
        self.vocab_size = vocab_size
        self._width = width
        self._dtype = dtype

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[outputs, vocab] logits on the rank that answers, [0, vocab] on the others."""
        if self._embedding is None:
            hidden = self._world.receive(len(batch.token_ids), self._width, self._dtype)
        else:
            hidden = self._embedding(batch.token_ids)
        norm = None if self._head is None else self._head.norm
        hidden = self._layers.forward(hidden, norm, batch, cache)
        if self._head is None:
            self._world.pass_on(hidden)
            return hidden.new_empty(0, self.vocab_size)
        logits = chosen_logits(self._head.words, hidden, batch.outputs)
        if len(self._head.widths) == 1 or not len(logits):
            return logits
        return self._world.gather(logits, self._head.widths)
