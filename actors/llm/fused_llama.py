"""The forward pass of Llama-like models in few operations: Llama, Mistral, Qwen2, Qwen3.

Logits are computed only where they are wanted, in float32. Takes over the weights of a loaded
transformers model, layer by layer, and leaves that model empty: never two copies of all weights.
Rotary frequencies come from the model's own module, so every fixed rope scaling is covered.

Knows nothing of requests, trees or parallelism; CPU and CUDA alike.
"""

from __future__ import annotations

from collections.abc import Callable
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


def as_they_are(weights: Weights) -> Weights:
    """Weights that need no preparation."""
    return weights


class FusedLlama:
    """A decoder out of a loaded `transformers` causal language model.

    Args:
        model: of one of `MODEL_TYPES`, with SiLU activations; its weights are taken away.
    """

    backend = "fused"

    def __init__(self, model: Foreign) -> None:
        body = model.model
        self._head = precise_product(weights_of(model.lm_head))
        self.vocab_size = len(model.lm_head.weight)
        shape = decoder_shape(model.config, body.layers[0], len(body.layers))
        self.kv_shape = shape.kv
        embedding, final_norm = body.embed_tokens.weight.detach(), body.norm.weight.detach()
        self._decoder = new_decoder(shape, body.rotary_emb, embedding, final_norm)
        for index in range(len(body.layers)):
            self._decoder.add_layer(take_layer(body.layers[index], model.config))
            body.layers[index] = nn.Identity()

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[outputs, vocab] logits, float32 at least; writes the rows' K and V."""
        hidden = self._decoder.forward(batch, cache)
        return self._head(hidden.index_select(0, batch.outputs))


def decoder_shape(config: Foreign, layer: Foreign, num_layers: int) -> DecoderShape:
    """Sizes of a decoder of such layers; by their weights, since a shard has some of the heads."""
    attention, mlp = layer.self_attn, layer.mlp
    head_dim: int = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    heads, kv_heads = (
        len(part.weight) // head_dim for part in (attention.q_proj, attention.k_proj)
    )
    kv_shape = KVShape(num_layers, kv_heads, head_dim)
    intermediate = len(mlp.gate_proj.weight)
    return DecoderShape(heads, kv_shape, config.hidden_size, intermediate, config.rms_norm_eps)


def take_layer(
    layer: Foreign, config: Foreign, prepare: Callable[[Weights], Weights] = as_they_are
) -> LayerWeights:
    """The weights of a transformers layer, or of one rank's part of it.

    Args:
        prepare: what is made of those of each product.
    """
    attention, mlp = layer.self_attn, layer.mlp
    query_norm = getattr(attention, "q_norm", None)
    key_norm = getattr(attention, "k_norm", None)
    return LayerWeights(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=prepare(weights_of(attention.q_proj, attention.k_proj, attention.v_proj)),
        rules=LayerRules(
            None if query_norm is None else query_norm.weight.detach(),
            None if key_norm is None else key_norm.weight.detach(),
            _window(attention, config),
        ),
        out=prepare(weights_of(attention.o_proj)),
        post_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=prepare(weights_of(mlp.gate_proj, mlp.up_proj)),
        down=prepare(weights_of(mlp.down_proj)),
    )


def _window(attention: Foreign, config: Foreign) -> int | None:
    """Mistral has one window for all layers, Qwen one for some of them, Llama none."""
    if config.model_type == "mistral":
        return config.sliding_window  # type: ignore[no-any-return]
    return getattr(attention, "sliding_window", None)


def weights_of(*parts: nn.Linear) -> Weights:
    """Weights of layers that take the same rows, as one."""
    detached = (
        Weights(part.weight.detach(), None if part.bias is None else part.bias.detach())
        for part in parts
    )
    return Weights.joined(*detached)
