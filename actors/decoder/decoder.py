"""The layers of a Llama-like decoder over a paged cache, as fast as the machine allows.

Two implementations behind one interface: native code for CPUs, and torch operations for every
device and type. Both give a row the same result whatever else is in the step; they differ from
each other in the last bits. Knows nothing of requests, heads over the vocabulary or where weights
come from.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from actors.decoder.batch import StepBatch
from actors.decoder.kv_cache import KVCache
from actors.decoder.layer_weights import DecoderShape, LayerWeights, Rotary
from actors.decoder.native.decoder import NativeDecoder
from actors.decoder.native.kernels import native_kernels
from actors.decoder.torch_decoder import TorchDecoder, Total


class Decoder(Protocol):
    """Embedding, layers and last norm, or those of them that there are."""

    def add_layer(self, weights: LayerWeights) -> None:
        """The next layer. Weights are copied into the order that suits the machine."""

    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """[N, hidden] normalised states of the batch's rows; writes the rows' K and V."""

    def run(self, hidden: Tensor, batch: StepBatch, cache: KVCache) -> Tensor:
        """The same for rows whose embeddings, or states before the first layer, are given.

        Args:
            hidden: [N, hidden]; changed.
        """


def new_decoder(
    shape: DecoderShape,
    rotary: Rotary,
    embedding: Tensor,
    final_norm: Tensor | None,
    total: Total | None = None,
) -> Decoder:
    """A decoder without layers yet.

    Args:
        rotary: the model's own.
        embedding: [vocab, hidden], of the type and on the device that is computed in; of no rows if
            only `run` is called.
        final_norm: [hidden]; None for the states behind the last layer as they are.
        total: adds up what the shards of a layer bring to the residual stream; None for a whole
            layer.
    """
    kernels = native_kernels(embedding.dtype, embedding.device, shape)
    if kernels is not None and total is None:
        return NativeDecoder(kernels, shape, rotary, embedding, final_norm)
    return TorchDecoder(shape, rotary, embedding, final_norm, total)
