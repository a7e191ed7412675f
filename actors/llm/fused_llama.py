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
from actors.decoder.decoder import Decoder, Layer, Layers
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
        body = model.model
        self._head = Head(model.lm_head.weight, model.lm_head.bias)
        self.vocab_size = self._head.vocab_size
        layers, self.kv_shape = take_layers(model.config, body)
        embedding, final_norm = body.embed_tokens.weight.detach(), body.norm.weight.detach()
        self._decoder = Decoder(embedding, layers, final_norm)

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[outputs, vocab] logits, float32 at least; writes the rows' K and V."""
        return chosen_logits(self._head, self._decoder.forward(batch, cache), batch.outputs)


def chosen_logits(head: Head, hidden: Tensor, outputs: Tensor) -> Tensor:
    """[outputs, vocab] of [N, hidden] states; at least two rows, as everywhere (`build_batch`)."""
    rows = outputs.repeat(2) if len(outputs) == 1 else outputs
    return head(hidden.index_select(0, rows))[: len(outputs)]


def joined(*parts: nn.Linear) -> Linear:
    """Several products of the same rows as one."""
    if len(parts) == 1:
        return Linear(parts[0].weight, parts[0].bias)
    weights: list[Tensor] = [part.weight.detach() for part in parts]
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    weight = torch.cat(weights)
    return Linear(weight, torch.cat(biases) if biases else None)


def take_layers(
    config: Foreign, body: Foreign, product: Callable[..., Linear] = joined
) -> tuple[Layers, KVShape]:
    """The layers of a body, taken away from it one by one, and the shape of their KV.

    Args:
        product: makes one product of modules that take the same rows.
    """
    attention, mlp = body.layers[0].self_attn, body.layers[0].mlp
    head_dim: int = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    # By the weights: a shard has some of the heads.
    heads, kv_heads = (
        len(part.weight) // head_dim for part in (attention.q_proj, attention.k_proj)
    )
    shape = KVShape(len(body.layers), kv_heads, head_dim)
    norm = body.layers[0].input_layernorm.weight
    widths = (config.hidden_size, len(mlp.gate_proj.weight))
    ops = row_ops(body.rotary_emb, norm, heads, shape, widths, config.rms_norm_eps)
    layers = []
    for index in range(len(body.layers)):
        layers.append(_take(body.layers[index], config, product))
        body.layers[index] = nn.Identity()
    return Layers(ops, layers), shape


def _take(layer: Foreign, config: Foreign, product: Callable[..., Linear]) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm = getattr(attention, "q_norm", None)
    key_norm = getattr(attention, "k_norm", None)
    return Layer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=product(attention.q_proj, attention.k_proj, attention.v_proj),
        rules=LayerRules(
            None if query_norm is None else query_norm.weight.detach(),
            None if key_norm is None else key_norm.weight.detach(),
            _window(attention, config),
        ),
        out=product(attention.o_proj),
        post_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=product(mlp.gate_proj, mlp.up_proj),
        down=product(mlp.down_proj),
    )


def _window(attention: Foreign, config: Foreign) -> int | None:
    """Mistral has one window for all layers, Qwen one for some of them, Llama none."""
    if config.model_type == "mistral":
        return config.sliding_window  # type: ignore[no-any-return]
    return getattr(attention, "sliding_window", None)
