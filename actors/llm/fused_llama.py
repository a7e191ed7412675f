"""The forward pass of Llama-like models in few operations: Llama, Mistral, Qwen2, Qwen3.

Q, K and V are one product, gate and up another, weights are packed (`actors.llm.linear`), and
logits are computed only where they are wanted, in float32. Takes over the weights of a loaded
transformers model, layer by layer, and leaves that model empty: never two copies of all weights.
Rotary frequencies come from the model's own module, so every fixed rope scaling is covered.

Knows nothing of requests, trees or parallelism; CPU and CUDA alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actors.llm.batch import StepBatch
from actors.llm.kv_cache import KVCache, KVShape
from actors.llm.linear import Head, Linear
from actors.llm.tree_attention import attend, stable_products

Foreign = Any
"""Objects of transformers, which is not typed."""

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


@dataclass(frozen=True)
class _Layer:
    """The weights of one decoder layer."""

    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    window: int | None
    out: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class FusedLlama:
    """A decoder out of a loaded `transformers` causal language model.

    Args:
        model: of one of `MODEL_TYPES`, with SiLU activations; its weights are taken away.
    """

    backend = "fused"

    def __init__(self, model: Foreign) -> None:
        config = model.config
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._eps: float = config.rms_norm_eps
        self.kv_shape = KVShape(config.num_hidden_layers, self._kv_heads, self._head_dim)
        body = model.model
        self._rotary = body.rotary_emb
        self._head = Head(model.lm_head.weight, model.lm_head.bias)
        self._embedding: Tensor = body.embed_tokens.weight.detach()
        self._final_norm: Tensor = body.norm.weight.detach()
        self.vocab_size = self._head.vocab_size
        self._layers: list[_Layer] = []
        for index in range(len(body.layers)):
            self._layers.append(_take(body.layers[index], config))
            body.layers[index] = nn.Identity()
        half = torch.ones(self._head_dim, dtype=self._embedding.dtype)
        half[: self._head_dim // 2] = -1
        self._rotation_sign = half.to(self._embedding.device)
        self._scale = self._head_dim**-0.5

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[outputs, vocab] logits, float32 at least; writes the rows' K and V."""
        hidden = F.embedding(batch.token_ids, self._embedding)  # [N, hidden]
        cos, sin = self._rotary(hidden, batch.positions[None])
        cos, sin = cos[0][:, None], (sin[0] * self._rotation_sign)[:, None]  # [N, 1, head_dim]
        with stable_products(hidden.dtype):
            for layer, kv in zip(self._layers, cache.layers, strict=True):
                rows = self._norm(hidden, layer.input_norm)
                attended = self._attention(layer, rows, kv, batch, cos, sin)
                hidden = layer.out(attended).add_(hidden)
                hidden = _mlp(layer, self._norm(hidden, layer.post_norm)).add_(hidden)
        return self._logits(hidden, batch.outputs)

    def _attention(
        self, layer: _Layer, rows: Tensor, kv: Tensor, batch: StepBatch, cos: Tensor, sin: Tensor
    ) -> Tensor:
        qkv = layer.qkv(rows).view(len(rows), -1, self._head_dim)
        queries, keys = qkv[:, : self._heads], qkv[:, self._heads : -self._kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries.copy_(self._norm(queries, layer.query_norm))
            keys.copy_(self._norm(keys, layer.key_norm))
        rotated = qkv[:, : -self._kv_heads]
        # rotate_half(x) = roll(x) with the first half negated; the sign stands in `sin`.
        turned = rotated.roll(self._head_dim // 2, -1)
        torch.addcmul(rotated * cos, turned, sin, out=rotated)
        pairs = qkv[:, self._heads :].view(len(rows), 2, self._kv_heads, -1)
        kv.index_copy_(2, batch.slots, pairs.permute(1, 2, 0, 3))
        return attend(queries, kv, batch, self._scale, layer.window)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows, weight.shape, weight, self._eps)

    def _logits(self, hidden: Tensor, outputs: Tensor) -> Tensor:
        # At least two rows, as everywhere (see StepBatch).
        rows = outputs.repeat(2) if len(outputs) == 1 else outputs
        hidden = self._norm(hidden.index_select(0, rows), self._final_norm)
        return self._head(hidden)[: len(outputs)]


def _mlp(layer: _Layer, rows: Tensor) -> Tensor:
    gate, up = layer.gate_up(rows).chunk(2, -1)
    return layer.down(F.silu(gate).mul_(up))


def _take(layer: Foreign, config: Foreign) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm = getattr(attention, "q_norm", None)
    key_norm = getattr(attention, "k_norm", None)
    return _Layer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=None if query_norm is None else query_norm.weight.detach(),
        key_norm=None if key_norm is None else key_norm.weight.detach(),
        window=_window(attention, config),
        out=_joined(attention.o_proj),
        post_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_joined(mlp.gate_proj, mlp.up_proj),
        down=_joined(mlp.down_proj),
    )


def _window(attention: Foreign, config: Foreign) -> int | None:
    """Mistral has one window for all layers, Qwen one for some of them, Llama none."""
    if config.model_type == "mistral":
        return config.sliding_window  # type: ignore[no-any-return]
    return getattr(attention, "sliding_window", None)


def _joined(*parts: nn.Linear) -> Linear:
    """Several products of the same rows as one."""
    if len(parts) == 1:
        return Linear(parts[0].weight, parts[0].bias)
    weights: list[Tensor] = [part.weight.detach() for part in parts]
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    weight = torch.cat(weights)
    return Linear(weight, torch.cat(biases) if biases else None)
