"""A decoder in native code, for CPUs: all layers of a step in one call (`layers.h`)."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.decoder.batch import StepBatch
from actors.decoder.kv_cache import KVCache
from actors.decoder.layer_weights import DecoderShape, LayerWeights, Rotary, Weights
from actors.decoder.native.kernels import LANES, Kernels
from actors.decoder.native.packed import MatrixStruct, PackedMatrix, alternating
from actors.errors import ModelError

ALL_POSITIONS = 1 << 62
"""A window that nothing falls out of."""

_POINTER, _COUNT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class _Shape(ctypes.Structure):
    """`DecoderShape` in `layers.h`."""

    _fields_ = [
        *((name, _COUNT) for name in ("queries", "keys", "dim", "hidden", "intermediate")),
        ("eps", _REAL),
        ("scale", _REAL),
    ]


class _Layer(ctypes.Structure):
    """`LayerWeights` in `layers.h`."""

    _fields_ = [
        ("input_norm", _POINTER),
        ("qkv", MatrixStruct),
        ("query_norm", _POINTER),
        ("key_norm", _POINTER),
        ("window", _COUNT),
        ("out", MatrixStruct),
        ("post_norm", _POINTER),
        ("gate_up", MatrixStruct),
        ("down", MatrixStruct),
    ]


class _Step(ctypes.Structure):
    """`Step` in `layers.h`."""

    _fields_ = [
        *((name, _COUNT) for name in ("rows", "num_sequences", "num_slots")),
        *(
            (name, _POINTER)
            for name in (
                "residual",
                "cosines",
                "sines",
                "slots",
                "spans",
                "places",
                "parents",
                "depths",
                "kv",
                "final_norm",
                "result",
            )
        ),
    ]


class NativeDecoder:
    """See `actors.decoder.decoder.Decoder`.

    Args:
        kernels: made for the embedding's type and the decoder's shape.
    """

    def __init__(
        self,
        kernels: Kernels,
        shape: DecoderShape,
        rotary: Rotary,
        embedding: Tensor,
        final_norm: Tensor | None,
    ) -> None:
        self._kernels = kernels
        self._rotary = rotary
        self._probe = torch.empty(0, dtype=torch.float32)
        self._embedding = embedding
        self._owned: list[Any] = []
        self._final_norm = self._own(final_norm)
        self._shape = _Shape(
            shape.num_heads,
            shape.kv.num_kv_heads,
            shape.kv.head_dim,
            shape.hidden,
            shape.intermediate,
            shape.eps,
            shape.kv.head_dim**-0.5,
        )
        self._layers = (_Layer * shape.kv.num_layers)()
        self._num_layers = 0

    def add_layer(self, weights: LayerWeights) -> None:
        rules = weights.rules
        self._layers[self._num_layers] = _Layer(
            self._own(weights.input_norm),
            self._pack(weights.qkv),
            self._own(rules.query_norm),
            self._own(rules.key_norm),
            ALL_POSITIONS if rules.window is None else rules.window,
            self._pack(weights.out),
            self._own(weights.post_norm),
            self._pack(_alternated(weights.gate_up)),
            self._pack(weights.down),
        )
        self._num_layers += 1

    @torch.inference_mode()
    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        return self.run(F.embedding(batch.token_ids, self._embedding), batch, cache)

    @torch.inference_mode()
    def run(self, hidden: Tensor, batch: StepBatch, cache: KVCache) -> Tensor:
        result = hidden if self._final_norm is None else torch.empty_like(hidden)
        cosines, sines = (table[0].contiguous() for table in self._rotary_of(batch))
        layout = batch.layout
        step = _Step(
            len(hidden),
            len(layout.spans),
            cache.num_slots + 1,
            hidden.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            batch.slots.data_ptr(),
            layout.spans.data_ptr(),
            layout.places.data_ptr(),
            layout.parents.data_ptr(),
            layout.depths.data_ptr(),
            cache.data.data_ptr(),
            self._final_norm,
            result.data_ptr(),
        )
        self._kernels.run_layers(self._shape, self._layers, self._num_layers, step)
        return result

    def _rotary_of(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        cosines, sines = self._rotary(self._probe, batch.positions[None])
        if cosines.shape[-1] != self._shape.dim:
            raise ModelError("its rotary positions turn a part of each head only")
        return cosines, sines

    def _pack(self, weights: Weights) -> MatrixStruct:
        self._check(weights.dtype)
        packed = PackedMatrix(weights)
        self._owned.append(packed)
        return packed.struct

    def _own(self, tensor: Tensor | None) -> int | None:
        """A pointer to a tensor that is kept alive."""
        if tensor is None:
            return None
        self._check(tensor.dtype)
        self._owned.append(tensor := tensor.detach().contiguous())
        return tensor.data_ptr()

    def _check(self, dtype: torch.dtype) -> None:
        """Native code takes all elements for those of one type. Raises ModelError."""
        if dtype != self._embedding.dtype:
            raise ModelError(f"its weights are {dtype} beside {self._embedding.dtype}")


def _alternated(weights: Weights) -> Weights:
    """Outputs of both halves by turns, as `layers.h` takes gate and up."""
    columns = (weights.bias, weights.scales)
    return Weights(
        alternating(weights.matrix, LANES),
        *(None if column is None else alternating(column, LANES) for column in columns),
    )
