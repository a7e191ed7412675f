"""The forward pass of Llama-like models in few operations: Llama, Mistral, Qwen2, Qwen3.

Logits are computed only where they are wanted, in float32. Takes over the weights of a loaded
transformers model, layer by layer, and leaves that model empty: never two copies of all weights.
Rotary frequencies come from the model's own module, so every fixed rope scaling is covered.

Knows nothing of requests, trees or parallelism; CPU and CUDA alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from actors.decoder.batch import StepBatch
from actors.decoder.decoder import Decoder, Layer
from actors.decoder.kv_cache import KVCache, KVShape
from actors.decoder.linear import Head, Linear
from actors.decoder.row_ops import LayerRules, row_ops

Foreign = Any
"""Objects of transformers, which is not typed."""

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


class FusedLlama:
    """A decoder out of a loaded `transformers` causal language model.

    Args:
        model: of one of `MODEL_TYPES`, with SiLU activations; its weights are taken away.
    """

    backend = "fused"

    def __init__(self, model: Foreign) -> None:
        config, body = model.config, model.model
        heads: int = config.num_attention_heads
        head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.kv_shape = KVShape(config.num_hidden_layers, config.num_key_value_heads, head_dim)
        self._head = Head(model.lm_head.weight, model.lm_head.bias)
        self.vocab_size = self._head.vocab_size
        embedding = body.embed_tokens.weight.detach()
        widths = (config.hidden_size, config.intermediate_size)
        ops = row_ops(body.rotary_emb, embedding, heads, self.kv_shape, widths, config.rms_norm_eps)
        layers = []
        for index in range(len(body.layers)):
            layers.append(_take(body.layers[index], config))
            body.layers[index] = nn.Identity()
        self._decoder = Decoder(ops, embedding, layers, body.norm.weight.detach())

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[outputs, vocab] logits, float32 at least; writes the rows' K and V."""
        hidden, outputs = self._decoder.forward(batch, cache), batch.outputs
        # At least two rows, as everywhere (see `build_batch`).
        rows = outputs.repeat(2) if len(outputs) == 1 else outputs
        return self._head(hidden.index_select(0, rows))[: len(outputs)]


def _take(layer: Foreign, config: Foreign) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm = getattr(attention, "q_norm", None)
    key_norm = getattr(attention, "k_norm", None)
    return Layer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        rules=LayerRules(
            None if query_norm is None else query_norm.weight.detach(),
            None if key_norm is None else key_norm.weight.detach(),
            _window(attention, config),
        ),
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
