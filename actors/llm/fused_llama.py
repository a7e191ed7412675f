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
from actors.decoder.decoder import new_decoder
from actors.decoder.kv_cache import KVCache, KVShape
from actors.decoder.layer_weights import DecoderShape, LayerRules, LayerWeights, Weights
from actors.decoder.linear import precise_product

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
        self._head = precise_product(_weights(model.lm_head))
        self.vocab_size = len(model.lm_head.weight)
        shape = DecoderShape(
            heads,
            self.kv_shape,
            config.hidden_size,
            config.intermediate_size,
            config.rms_norm_eps,
        )
        embedding, final_norm = body.embed_tokens.weight.detach(), body.norm.weight.detach()
        self._decoder = new_decoder(shape, body.rotary_emb, embedding, final_norm)
        for index in range(len(body.layers)):
            self._decoder.add_layer(_take(body.layers[index], config))
            body.layers[index] = nn.Identity()

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[outputs, vocab] logits, float32 at least; writes the rows' K and V."""
        hidden = self._decoder.forward(batch, cache)
        return self._head(hidden.index_select(0, batch.outputs))


def _take(layer: Foreign, config: Foreign) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm = getattr(attention, "q_norm", None)
    key_norm = getattr(attention, "k_norm", None)
    return LayerWeights(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=_weights(attention.q_proj, attention.k_proj, attention.v_proj),
        rules=LayerRules(
            None if query_norm is None else query_norm.weight.detach(),
            None if key_norm is None else key_norm.weight.detach(),
            _window(attention, config),
        ),
        out=_weights(attention.o_proj),
        post_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_weights(mlp.gate_proj, mlp.up_proj),
        down=_weights(mlp.down_proj),
    )


def _window(attention: Foreign, config: Foreign) -> int | None:
    """Mistral has one window for all layers, Qwen one for some of them, Llama none."""
    if config.model_type == "mistral":
        return config.sliding_window  # type: ignore[no-any-return]
    return getattr(attention, "sliding_window", None)


def _weights(*parts: nn.Linear) -> Weights:
    """Of layers that take the same rows, as one."""
    detached = (
        Weights(part.weight.detach(), None if part.bias is None else part.bias.detach())
        for part in parts
    )
    return Weights.joined(*detached)
