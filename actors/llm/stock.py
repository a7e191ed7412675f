"""Any decoder that transformers can run, over our paged attention.

The model's own modules do everything but attention, which they hand to `tree_attention` through
`transformers.AttentionInterface`. Slower than a fused forward, and its reference.

What a model's attention needs is found by watching it: a dry run records what each layer asks for,
and over one short text each layer's attention, and the logits, must be what they are with the
model's own. A model that does not pass is refused rather than served wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn
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
"""Of the largest value; for 16-bit types, whose two attentions round at different places."""


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
        self._attentions: dict[int, nn.Module] = {}
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
            self._attentions[module.layer_idx] = module
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
        """One short text with the model's own attention and with ours, layer by layer.

        Behind each layer's attention both go on with what its own gave. Else the two would part
        further with every layer, and where experts are chosen a rounding may choose others.
        """
        self._model.set_attn_implementation("eager")
        own: dict[int, Tensor] = {}
        with self._behind_attention(own.setdefault):
            expected = self._own_forward()
        AttentionInterface.register(STOCK_NAME, stock_attention)
        self._model.set_attn_implementation(STOCK_NAME)
        cache = KVCache(self.kv_shape, 1, _CHECK_TOKENS, self._dtype, self._device)
        row = Row(0, 0, TokenTree.chain(self._check_ids()))
        held = RequestKV(NewRequest(0, 1, SamplingParams()), np.arange(_CHECK_TOKENS))
        batch = build_batch((row,), {0: held}, cache.scratch_slot, self._device)

        def compare(index: int, attended: Tensor) -> Tensor:
            self._check("attention", attended, own[index])
            return own[index]

        with self._behind_attention(compare):
            logits = self.run(batch, cache)
        self._check("logits", logits, expected)

    def _check(self, what: str, ours: Tensor, own: Tensor) -> None:
        difference = (ours - own).abs().max()
        tolerance = _LOOSE_TOLERANCE if self._dtype.itemsize < 4 else _TIGHT_TOLERANCE
        if not difference <= tolerance * own.abs().max():
            raise ModelError(f"our attention gives other {what} than its own: off by {difference}")

    @contextmanager
    def _behind_attention(self, put: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
        """Put something else in place of what each layer's attention gives.

        Args:
            put: takes the layer's number and [1, tokens, width].
        """

        def replace(module: Foreign, arguments: object, output: Foreign) -> Foreign:
            if isinstance(output, tuple):
                return put(module.layer_idx, output[0]), *output[1:]
            return put(module.layer_idx, output)

        with ExitStack() as hooks:
            for module in self._attentions.values():
                hooks.callback(module.register_forward_hook(replace).remove)
            yield

    def _check_ids(self) -> list[int]:
        return [index * 7919 % self.vocab_size for index in range(1, _CHECK_TOKENS + 1)]

    @torch.inference_mode()
    def _own_forward(self) -> Tensor:
        ids = torch.tensor([self._check_ids()], device=self._device)
        return self._call(input_ids=ids)
