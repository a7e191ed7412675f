"""The draft model's forward pass over the shared decoder, and its head over the cut.

The same function as `actors.ssm.model.DraftModel`, with what can be done once done once: token
embeddings already projected, output rows and projection in one matrix, weights packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from actors.decoder.attention_groups import Span
from actors.decoder.batch import StepBatch
from actors.decoder.decoder import new_decoder
from actors.decoder.kv_cache import KVCache, KVShape
from actors.decoder.layer_weights import DecoderShape, LayerRules, LayerWeights, Weights
from actors.decoder.linear import precise_product
from actors.ssm.model import HEAD_DIM, NORM_EPS, Block, DraftModel, rotary_angles

_CPU = torch.device("cpu")
_NO_OUTPUTS = np.empty(0, dtype=np.int64)


class FusedDraft:
    """A draft model ready to draft; keeps nothing of the model that it is made from.

    Args:
        model: with its weights.
        dtype: to compute in.

    Attributes:
        kv_shape: of its keys and values.
        cut_ids: [cut] int64, the LLM's token id of each logit.
        vocab_size: the LLM's.
    """

    def __init__(self, model: DraftModel, dtype: torch.dtype) -> None:
        shape = model.shape
        self.dtype = dtype
        self.kv_shape = KVShape(shape.num_layers, shape.num_heads, HEAD_DIM)
        self.cut_ids = model.cut_ids.long()
        self.vocab_size = len(model.embeddings)
        rules = LayerRules(window=shape.window or None)
        sizes = DecoderShape(shape.num_heads, self.kv_shape, shape.width, shape.ff_width, NORM_EPS)
        with torch.inference_mode():
            embedding = model.project_in(model.embeddings).to(dtype)  # [vocab, width]
            final_norm = model.norm.weight.to(dtype)
            self._decoder = new_decoder(sizes, _Rotary(), embedding, final_norm)
            for block in model.layers:
                self._decoder.add_layer(_take(cast("Block", block), rules, dtype))
            self._head = precise_product(Weights(model.head().to(dtype), model.bias))

    def forward(self, spans: Sequence[Span], cache: KVCache) -> Tensor:
        """[rows, width] final states of all spans' rows; writes the rows' KV to the cache."""
        batch = StepBatch.of(spans, _NO_OUTPUTS, cache.num_slots + 1, _CPU)
        return self._decoder.forward(batch, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, width] final states to [rows, cut] float32 logits of our own."""
        return self._head(hidden)


class _Rotary:
    """Cosines and sines out of a table that grows with the positions asked for."""

    def __init__(self) -> None:
        self._fill(1024)

    def __call__(self, probe: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[1, N] positions to [1, N, 64] cosines and sines of the probe's type."""
        last = int(positions.max())
        if last >= len(self._cosines):
            self._fill(2 * last)
        cosines, sines = self._cosines[positions], self._sines[positions]
        return cosines.to(probe.dtype), sines.to(probe.dtype)

    def _fill(self, end: int) -> None:
        angles = rotary_angles(torch.arange(end)).repeat(1, 2)
        self._cosines, self._sines = angles.cos(), angles.sin()


def _take(block: Block, rules: LayerRules, dtype: torch.dtype) -> LayerWeights:
    def weights(layer: nn.Module) -> Weights:
        return Weights(cast("nn.Linear", layer).weight.to(dtype))

    return LayerWeights(
        input_norm=block.attention_norm.weight.to(dtype),
        qkv=weights(block.qkv),
        rules=rules,
        out=weights(block.attention_out),
        post_norm=block.mlp_norm.weight.to(dtype),
        gate_up=weights(block.gate_up),
        down=weights(block.down),
    )
