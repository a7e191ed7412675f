"""The native kernels as functions of tensors.

Every function checks nothing that its caller can know once (see `native_kernels`); shapes are those
of the fused forward. Pointers are taken from contiguous CPU tensors of the dtype that the kernels
were made for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from actors.decoder.batch import RowLayout
from actors.decoder.kv_cache import KVShape
from actors.decoder.native.build import native_library

HEAD_DIMS = frozenset({32, 64, 96, 128})
LANES = 16
ALL_POSITIONS = 1 << 62
"""A window that nothing falls out of."""

_POINTER, _COUNT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS = {
    "add_rms_norm": [*[_POINTER] * 4, *[_COUNT] * 2, _REAL],
    "silu_mul": [*[_POINTER] * 2, *[_COUNT] * 2],
    "rotate_and_store": [
        *[_POINTER] * 5,
        _REAL,
        _POINTER,
        _COUNT,
        _POINTER,
        *[_COUNT] * 4,
    ],
    "attend": [*[_POINTER] * 3, *[_COUNT] * 4, _REAL, *[_COUNT] * 2, *[_POINTER] * 4],
}
_BEST_ARGUMENTS: Sequence[type[Any]] = [_POINTER, *[_COUNT] * 3, *[_POINTER] * 2]


class Kernels:
    """Kernels for one element type and one shape of heads.

    Args:
        library: the compiled ones.
        dtype: bfloat16 or float32.
        num_heads: query heads.
        shape: of the KV.
        eps: of the norms.
    """

    def __init__(
        self, library: ctypes.CDLL, dtype: torch.dtype, num_heads: int, shape: KVShape, eps: float
    ) -> None:
        functions = {}
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, f"{name}_{str(dtype).removeprefix('torch.')}")
            function.argtypes = arguments
            functions[name] = function
        self._add_rms_norm = functions["add_rms_norm"]
        self._silu_mul = functions["silu_mul"]
        self._rotate_and_store = functions["rotate_and_store"]
        self._attend = functions["attend"]
        self._heads = (num_heads, shape.num_kv_heads, shape.head_dim)
        self._scale = shape.head_dim**-0.5
        self._eps = eps

    def add_rms_norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """Adds `delta` to `residual` [N, hidden] in place; returns its RMS norm."""
        out = torch.empty_like(residual)
        self._add_rms_norm(
            residual.data_ptr(),
            None if delta is None else delta.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            *residual.shape,
            self._eps,
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[N, 2F], gate and up side by side, to silu(gate) * up [N, F]."""
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(num_rows, width)
        self._silu_mul(gate_up.data_ptr(), out.data_ptr(), num_rows, width)
        return out

    def rotate_and_store(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        query_norm: Tensor | None,
        key_norm: Tensor | None,
        layer: Tensor,
        slots: Tensor,
    ) -> None:
        """Norms (if any) and rotates queries and keys of [N, heads * head_dim] in place, and writes
        keys and values to the cache layer [2, kv_heads, slots, head_dim].

        Args:
            cos, sin: [N, head_dim] float32.
            slots: [N] where each row's KV goes.
        """
        self._rotate_and_store(
            qkv.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            None if query_norm is None else query_norm.data_ptr(),
            None if key_norm is None else key_norm.data_ptr(),
            self._eps,
            layer.data_ptr(),
            layer.shape[2],
            slots.data_ptr(),
            qkv.shape[0],
            *self._heads,
        )

    def attend(self, qkv: Tensor, layer: Tensor, layout: RowLayout, window: int | None) -> Tensor:
        """[N, query heads * head_dim]: attention of every row over what it sees.

        Args:
            qkv: rotated.
            window: positions that a row sees, its own included; None for all.
        """
        out = qkv.new_empty(qkv.shape[0], self._heads[0] * self._heads[2])
        self._attend(
            qkv.data_ptr(),
            layer.data_ptr(),
            out.data_ptr(),
            layer.shape[2],
            *self._heads,
            self._scale,
            ALL_POSITIONS if window is None else window,
            layout.spans.shape[0],
            layout.spans.data_ptr(),
            layout.places.data_ptr(),
            layout.parents.data_ptr(),
            layout.depths.data_ptr(),
        )
        return out


def native_kernels(
    dtype: torch.dtype,
    device: torch.device,
    num_heads: int,
    shape: KVShape,
    widths: tuple[int, ...],
    eps: float,
) -> Kernels | None:
    """Kernels for a model, or None if there are none for its shapes, its device or this machine.

    Args:
        widths: hidden and intermediate size.
    """
    fits = (
        device.type == "cpu"
        and dtype in (torch.bfloat16, torch.float32)
        and shape.head_dim in HEAD_DIMS
        and num_heads % shape.num_kv_heads == 0
        and all(width % LANES == 0 for width in widths)
    )
    library = native_library() if fits else None
    return None if library is None else Kernels(library, dtype, num_heads, shape, eps)


def best_of_rows(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best of each row by logit, and their probabilities in the softmax of the whole row.

    Ties go to the smaller index with native code; without it, torch decides.

    Args:
        logits: [rows, width] float32, contiguous, on the CPU or not.
        count: 1 to width.

    Returns:
        [rows, count] int64 places and float32 probabilities, best first.
    """
    library = native_library() if logits.device.type == "cpu" else None
    if library is None:
        probabilities, places = torch.topk(logits.softmax(-1).nan_to_num_(0.0), count)
        return places, probabilities
    num_rows, width = logits.shape
    places = torch.empty(num_rows, count, dtype=torch.int64)
    probabilities = torch.empty(num_rows, count)
    function = library.best_of_rows
    function.argtypes = _BEST_ARGUMENTS
    function(logits.data_ptr(), num_rows, width, count, places.data_ptr(), probabilities.data_ptr())
    return places, probabilities
