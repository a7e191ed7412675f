"""The forward pass of one stage on one shard: fused, or on transformers' own modules.

A part takes hidden states (the first stage: token ids) and gives hidden states (the last stage:
logits of its shard's words). It knows nothing of other stages; sums over shards are inside the
products and the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from actors.decoder.batch import StepBatch
from actors.decoder.decoder import new_decoder
from actors.decoder.kv_cache import KVCache, KVShape
from actors.decoder.layer_weights import LayerWeights, Weights
from actors.decoder.linear import Product, precise_product
from actors.llm.fused_llama import Foreign, decoder_shape, take_layer, weights_of
from actors.llm.parallel.grid import Grid
from actors.llm.parallel.skeleton import Skeleton
from actors.llm.parallel.world import World
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
        skeleton: with this rank's weights, but for layers, of which it needs none.
        first_layer: of this rank; `add_layer` takes the others.
        num_layers: of this rank.
        world: the ranks.
        prepare: what is made of the weights of each product.
    """

    backend = "fused"

    def __init__(
        self,
        skeleton: Skeleton,
        first_layer: Foreign,
        num_layers: int,
        world: World,
        prepare: Callable[[Weights], Weights],
    ) -> None:
        self._grid = grid = world.grid
        self._config = skeleton.model.config
        self._prepare = prepare
        self._embedding: Foreign = skeleton.embedding
        self._head: Product | None = None
        norm: Tensor = skeleton.body.norm.weight.detach()
        if grid.is_last_stage:
            self._head = precise_product(prepare(weights_of(skeleton.head)))
            _let_go(skeleton.head)
        shape = decoder_shape(self._config, first_layer, num_layers)
        self.kv_shape = shape.kv
        self._decoder = new_decoder(
            shape,
            skeleton.body.rotary_emb,
            norm.new_empty(0, shape.hidden),
            norm if grid.is_last_stage else None,
            world.sum if grid.tensor_parallel > 1 else None,
        )
        self.add_layer(first_layer)

    def add_layer(self, layer: Foreign) -> None:
        """The next layer; nothing of it is kept, nor left in it."""
        weights = take_layer(layer, self._config, self._prepare)
        _let_go(layer)  # what was joined is there twice
        self._decoder.add_layer(weights if self._grid.shard == 0 else _without_sum_biases(weights))

    def forward(self, batch: StepBatch, cache: KVCache, hidden: Tensor | None) -> Tensor:
        if hidden is None:
            hidden = self._embedding(batch.token_ids)
        hidden = self._decoder.run(hidden, batch, cache)
        if self._head is None:
            return hidden
        return self._head(hidden.index_select(0, batch.outputs))


def _let_go(module: nn.Module) -> None:
    """Free its weights, but for those that are used elsewhere."""
    module.to_empty(device="meta")


def _without_sum_biases(weights: LayerWeights) -> LayerWeights:
    """Of the products that are summed over shards one shard adds the bias."""
    out, down = (replace(part, bias=None) for part in (weights.out, weights.down))
    return replace(weights, out=out, down=down)


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
        # A lone row is run twice, as `StockModel` does.
        self._call.incoming = (
            hidden.repeat(2, 1) if hidden is not None and len(hidden) == 1 else hidden
        )
        if self._gives_logits:
            return self._stock.forward(batch, cache)
        return self._stock.run(batch.paired(), cache)[: len(batch.token_ids)]


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
