"""A decoder with torch operations, for every device and type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.decoder.batch import StepBatch
from actors.decoder.kv_cache import KVCache
from actors.decoder.layer_weights import DecoderShape, LayerRules, LayerWeights, Rotary
from actors.decoder.linear import Product, linear
from actors.decoder.tree_attention import attend, stable_products

Total = Callable[[Tensor], Tensor]
"""[N, hidden] of one shard to the sum over all; may change its argument."""


@dataclass(frozen=True)
class _Layer:
    input_norm: Tensor
    qkv: Product
    rules: LayerRules
    out: Product
    post_norm: Tensor
    gate_up: Product
    down: Product


class TorchDecoder:
    """See `actors.decoder.decoder.Decoder`."""

    def __init__(
        self,
        shape: DecoderShape,
        rotary: Rotary,
        embedding: Tensor,
        final_norm: Tensor | None,
        total: Total | None = None,
    ) -> None:
        self._shape = shape
        self._rotary = rotary
        self._embedding = embedding
        self._final_norm = final_norm
        self._total = total or _as_it_is
        self._layers: list[_Layer] = []
        # rotate_half(x) = roll(x) with the first half negated; the sign goes into the sines.
        self._sign = torch.ones(shape.kv.head_dim, dtype=embedding.dtype, device=embedding.device)
        self._sign[: shape.kv.head_dim // 2] = -1

    def add_layer(self, weights: LayerWeights) -> None:
        self._layers.append(
            _Layer(
                weights.input_norm,
                linear(weights.qkv),
                weights.rules,
                linear(weights.out),
                weights.post_norm,
                linear(weights.gate_up),
                linear(weights.down),
            )
        )

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        return self.run(F.embedding(batch.token_ids, self._embedding), batch, cache)

    @torch.inference_mode()
    def run(self, hidden: Tensor, batch: StepBatch, cache: KVCache) -> Tensor:
        num_rows, batch = len(batch.token_ids), batch.paired()
        residual = hidden if num_rows == len(batch.token_ids) else hidden.repeat(2, 1)
        cos, sin = self._rotary(self._embedding[:0], batch.positions[None])
        rotations = cos[0][:, None], (sin[0] * self._sign)[:, None]
        with stable_products(residual.dtype):
            for layer, kv in zip(self._layers, cache.layers, strict=True):
                qkv = layer.qkv(self._norm(residual, layer.input_norm))
                attended = self._attention(qkv, layer.rules, kv, batch, rotations)
                residual.add_(self._total(layer.out(attended)))
                gate, up = layer.gate_up(self._norm(residual, layer.post_norm)).chunk(2, -1)
                residual.add_(self._total(layer.down(F.silu(gate).mul_(up))))
        if self._final_norm is not None:
            residual = self._norm(residual, self._final_norm)
        return residual[:num_rows]

    def _attention(
        self,
        qkv: Tensor,
        rules: LayerRules,
        kv: Tensor,
        batch: StepBatch,
        rotations: tuple[Tensor, Tensor],
    ) -> Tensor:
        """[N, (heads + 2 * kv_heads) * head_dim] to [N, heads * head_dim]; changes `qkv` and writes
        the rows' keys and values to the cache layer `kv`. `rotations`: [N, 1, head_dim] cosines and
        signed sines."""
        heads, kv_heads, dim = self._shape.num_heads, kv.shape[1], kv.shape[3]
        qkv = qkv.view(len(qkv), -1, dim)
        queries, keys = qkv[:, :heads], qkv[:, heads:-kv_heads]
        if rules.query_norm is not None and rules.key_norm is not None:
            queries.copy_(self._norm(queries, rules.query_norm))
            keys.copy_(self._norm(keys, rules.key_norm))
        rotated = qkv[:, :-kv_heads]
        turned = rotated.roll(dim // 2, -1)
        torch.addcmul(rotated * rotations[0], turned, rotations[1], out=rotated)
        pairs = qkv[:, heads:].view(len(qkv), 2, kv_heads, dim)
        kv.index_copy_(2, batch.slots, pairs.permute(1, 2, 0, 3))
        return attend(queries, kv, batch, dim**-0.5, rules.window)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows, weight.shape, weight, self._shape.eps)


def _as_it_is(rows: Tensor) -> Tensor:
    return rows
