"""Any decoder that transformers can run, over our paged attention.

The model's own modules do everything but attention, which they hand to `tree_attention` through
`transformers.AttentionInterface`. Slower than a fused forward, and its reference.

What a model's attention needs is found by watching it: a dry run records what each layer asks for,
and one short text must give the same logits as with the model's own attention. A model that does
not pass is refused rather than served wrongly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

from actors.decoder.batch import StepBatch
from actors.decoder.kv_cache import KVCache, KVShape
from actors.decoder.tree_attention import STOCK_NAME, stable_products, stock_attention
from actors.errors import ModelError
from actors.llm.batch import build_batch
from actors.llm.block_tables import RequestKV
from actors.llm.fused_llama import Foreign
from actors.messages import NewRequest, Row
from actors.sampling import SamplingParams
from actors.tree import TokenTree

_WATCH_NAME = "treeserve_watch"
_UNSUPPORTED_KEYWORDS = ("s_aux", "position_bias", "score_mod", "attention_bias")
_CHECK_TOKENS = 8
_TIGHT_TOLERANCE = 1e-3
_LOOSE_TOLERANCE = 5e-2
"""Of the largest logit; for 16-bit types, whose two attentions round at different places."""


class StockModel:
    """Stock modules with paged attention.

    Args:
        model: a `transformers` causal language model, loaded with any attention.
        call: what is called in its place with the arguments of its forward pass and gives [N, out];
            None calls the model itself for its logits.

    Raises:
        ModelError: its attention is not one that we compute.
    """

    backend = "stock"

    def __init__(self, model: Foreign, call: Callable[..., Tensor] | None = None) -> None:
        self._model = model
        self._call = call or self._logits
        self.vocab_size: int = model.config.get_text_config().vocab_size
        weight = next(weight for weight in model.parameters() if not weight.is_meta)
        self._device, self._dtype = weight.device, weight.dtype
        self.kv_shape = self._watch()
        self._compare()

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[outputs, vocab] logits, float32 at least; writes the rows' K and V."""
        # At least two rows, for the head too.
        batch = batch.paired()
        outputs = batch.outputs.repeat(2) if len(batch.outputs) == 1 else batch.outputs
        logits = self.run(batch, cache, logits_to_keep=outputs)[: len(batch.outputs)]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    @torch.inference_mode()
    def run(self, batch: StepBatch, cache: KVCache, **more: Tensor) -> Tensor:
        """[N, out] of all rows, or as the arguments say; writes the rows' K and V."""
        with stable_products(self._dtype):
            return self._call(
                input_ids=batch.token_ids[None],
                position_ids=batch.positions[None],
                step_batch=batch,
                kv_cache=cache,
                **more,
            )

    def _logits(self, **arguments: object) -> Tensor:
        logits: Tensor = self._model(use_cache=False, **arguments).logits[0]
        return logits

    def _watch(self) -> KVShape:
        """The KV shape that every layer agrees on."""
        seen: dict[int, torch.Size] = {}

        def watch(
            module: Foreign,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            mask: Tensor | None,
            **keywords: object,
        ) -> tuple[Tensor, None]:
            asked = [name for name in _UNSUPPORTED_KEYWORDS if keywords.get(name) is not None]
            if asked or mask is not None or key.shape != value.shape:
                raise ModelError(f"its attention is not standard: {asked or 'own mask or shapes'}")
            seen[module.layer_idx] = key.shape
            return query.transpose(1, 2).contiguous(), None

        AttentionInterface.register(_WATCH_NAME, watch)
        self._model.set_attn_implementation(_WATCH_NAME)
        self._own_forward()
        num_layers = self._model.config.num_hidden_layers
        if sorted(seen) != list(range(num_layers)):
            raise ModelError(f"only {len(seen)} of its {num_layers} layers have standard attention")
        if len(set(seen.values())) != 1:
            raise ModelError("its layers differ in the shape of their keys")
        _, num_kv_heads, _, head_dim = seen[0]
        return KVShape(num_layers, num_kv_heads, head_dim)

    def _compare(self) -> None:
        """One short text with the model's own attention and with ours."""
        self._model.set_attn_implementation("eager")
        expected = self._own_forward()
        AttentionInterface.register(STOCK_NAME, stock_attention)
        self._model.set_attn_implementation(STOCK_NAME)
        cache = KVCache(self.kv_shape, 1, _CHECK_TOKENS, self._dtype, self._device)
        row = Row(0, 0, TokenTree.chain(self._check_ids()))
        held = RequestKV(NewRequest(0, 1, SamplingParams()), np.arange(_CHECK_TOKENS))
        batch = build_batch((row,), {0: held}, cache.scratch_slot, self._device)
        difference = (self.run(batch, cache) - expected).abs().max()
        tolerance = _LOOSE_TOLERANCE if self._dtype.itemsize < 4 else _TIGHT_TOLERANCE
        if not difference <= tolerance * expected.abs().max():
            raise ModelError(f"our attention gives other logits than its own: off by {difference}")

    def _check_ids(self) -> list[int]:
        return [index * 7919 % self.vocab_size for index in range(1, _CHECK_TOKENS + 1)]

    @torch.inference_mode()
    def _own_forward(self) -> Tensor:
        ids = torch.tensor([self._check_ids()], device=self._device)
        return self._call(input_ids=ids)
