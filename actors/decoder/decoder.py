"""The layers of a Llama-like decoder in few operations.

Q, K and V are one product, gate and up another, and weights are packed (`actors.decoder.linear`).
Knows nothing of requests, heads over the vocabulary or where weights come from; CPU and CUDA alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.decoder.batch import StepBatch
from actors.decoder.kv_cache import KVCache
from actors.decoder.linear import Linear
from actors.decoder.row_ops import LayerRules, RowOps


@dataclass(frozen=True)
class Layer:
    """The weights of one layer; norms are [hidden]."""

    input_norm: Tensor
    qkv: Linear
    rules: LayerRules
    out: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class Layers:
    """Layers one after another.

    Args:
        ops: the work between products.
        layers: in order.
    """

    def __init__(self, ops: RowOps, layers: Sequence[Layer]) -> None:
        self._ops = ops
        self._layers = tuple(layers)

    @torch.inference_mode()
    def forward(
        self, residual: Tensor, final_norm: Tensor | None, batch: StepBatch, cache: KVCache
    ) -> Tensor:
        """[N, hidden] states of the batch's rows behind the last layer; writes their K and V.

        Args:
            residual: [N, hidden] states before the first layer; changed.
            final_norm: [hidden] weight of a norm behind the last layer, or None.
        """
        ops = self._ops
        rotations = ops.rotations(batch)
        delta: Tensor | None = None
        with ops.context():
            for layer, kv in zip(self._layers, cache.layers, strict=True):
                qkv = layer.qkv(ops.add_norm(residual, delta, layer.input_norm))
                attended = ops.attention(qkv, layer.rules, kv, batch, rotations)
                rows = ops.add_norm(residual, layer.out(attended), layer.post_norm)
                delta = layer.down(ops.activation(layer.gate_up(rows)))
            if final_norm is None:
                return residual if delta is None else residual.add_(delta)
            return ops.add_norm(residual, delta, final_norm)


class Decoder:
    """Embedding, layers and last norm.

    Args:
        embedding: [vocab, hidden].
        layers: between them.
        final_norm: [hidden].
    """

    def __init__(self, embedding: Tensor, layers: Layers, final_norm: Tensor) -> None:
        self._embedding = embedding
        self._layers = layers
        self._final_norm = final_norm

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[N, hidden] normalised states of the batch's rows; writes the rows' K and V."""
        residual = F.embedding(batch.token_ids, self._embedding)
        return self._layers.forward(residual, self._final_norm, batch, cache)
