"""The forward pass of one stage on one shard: fused, or on transformers' own modules.

A part takes hidden states (the first stage: token ids) and gives hidden states (the last stage:
logits of its shard's words). It knows nothing of other stages; sums over shards are inside the
products and the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from actors.decoder.batch import StepBatch
from actors.decoder.kv_cache import KVCache, KVShape
from actors.decoder.linear import Head, Linear
from actors.llm.fused_llama import Foreign, chosen_logits, take_layers
from actors.llm.parallel.grid import Grid
from actors.llm.parallel.skeleton import Skeleton
from actors.llm.stock import StockModel


class Part(Protocol):
    """What a stage computes.

    Attributes:
        backend: `fused` or `stock`.
        kv_shape: of this rank's KV of one token.
    """

    backend: str
    kv_shape: KVShape

    def forward(self, batch: StepBatch, cache: KVCache, hidden: Tensor | None) -> Tensor:
        """[N, width] states; on the last stage [outputs, this shard's words] logits.

        Args:
            hidden: [N, width] states of the stage before, which may be changed; None on the first.
        """


class FusedPart:
    """The fused forward pass.

    Args:
        skeleton: with this rank's weights, which are taken away.
        grid: the rank's place.
        product: makes one product of modules that take the same rows.
    """

    backend = "fused"

    def __init__(self, skeleton: Skeleton, grid: Grid, product: Callable[..., Linear]) -> None:
        self._embedding: Foreign = skeleton.embedding
        self._norm: Tensor | None = None
        self._head: Head | None = None
        if grid.is_last_stage:
            self._norm = skeleton.body.norm.weight.detach()
            self._head = Head(skeleton.head.weight, skeleton.head.bias)
        config = skeleton.model.config
        self._layers, self.kv_shape = take_layers(config, skeleton.body, product)

    def forward(self, batch: StepBatch, cache: KVCache, hidden: Tensor | None) -> Tensor:
        if hidden is None:
            hidden = self._embedding(batch.token_ids)
        hidden = self._layers.forward(hidden, self._norm, batch, cache)
        return hidden if self._head is None else chosen_logits(self._head, hidden, batch.outputs)


class StockPart:
    """Transformers' own modules over our attention, checked as `StockModel` does.

    Args:
        skeleton: with this rank's weights.
        grid: the rank's place.

    Raises:
        ModelError: its attention is not one that we compute.
    """

    backend = "stock"

    def __init__(self, skeleton: Skeleton, grid: Grid) -> None:
        self._call = _StageCall(skeleton, grid)
        self._stock = StockModel(skeleton.model, self._call)
        self._gives_logits = grid.is_last_stage
        self.kv_shape = self._stock.kv_shape

    def forward(self, batch: StepBatch, cache: KVCache, hidden: Tensor | None) -> Tensor:
        self._call.incoming = hidden
        if self._gives_logits:
            return self._stock.forward(batch, cache)
        return self._stock.run(batch, cache)


class _StageCall:
    """Calls a model that has the layers of one stage.

    Whatever a model does before its first layer and behind its last it does here too, for the
    first layer's input is then replaced, and the last layer's output taken as it comes.
    """

    def __init__(self, skeleton: Skeleton, grid: Grid) -> None:
        self.incoming: Tensor | None = None
        self._outgoing = torch.empty(0)
        self._model, self._body = skeleton.model, skeleton.body
        self._is_last = grid.is_last_stage
        layers = skeleton.model.get_submodule(skeleton.layers_name)
        if not grid.is_first_stage:
            layers[0].register_forward_pre_hook(self._replace)
        if not grid.is_last_stage:
            layers[-1].register_forward_hook(self._take)

    def __call__(self, **arguments: object) -> Tensor:
        if self._is_last:
            logits: Tensor = self._model(use_cache=False, **arguments).logits[0]
            return logits
        self._body(use_cache=False, **arguments)
        return self._outgoing

    def _replace(self, layer: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.incoming is None:  # while the attention is checked
            return arguments
        return (self.incoming[None], *arguments[1:])

    def _take(self, layer: nn.Module, arguments: object, output: Foreign) -> None:
        states = output[0] if isinstance(output, tuple) else output
        self._outgoing = states[0]
