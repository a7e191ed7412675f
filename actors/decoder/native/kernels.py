"""The native kernels as functions of tensors.

Every function checks nothing that its caller can know once (see `native_kernels`). Pointers are
taken from contiguous CPU tensors of the dtype that the kernels were made for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from actors.decoder.layer_weights import DecoderShape
from actors.decoder.native.build import native_library
from actors.decoder.native.packed import MatrixStruct, PackedMatrix

HEAD_DIMS = frozenset({32, 64, 96, 128})
LANES = 16

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS: dict[str, Sequence[type[Any]]] = {
    "run_layers": (_POINTER, _POINTER, _COUNT, _POINTER),
    "product": (_POINTER, _COUNT, _POINTER, _POINTER),
}


class Kernels:
    """Kernels for one element type.

    Args:
        library: the compiled ones.
        dtype: bfloat16 or float32.
    """

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        functions = {}
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, f"{name}_{str(dtype).removeprefix('torch.')}")
            function.argtypes = arguments
            function.restype = None
            functions[name] = function
        self._run_layers = functions["run_layers"]
        self._product = functions["product"]

    def run_layers(
        self,
        shape: ctypes.Structure,
        layers: ctypes.Array[Any],
        num_layers: int,
        step: ctypes.Structure,
    ) -> None:
        """All layers of a step; the structures are those of `layers.h`."""
        self._run_layers(ctypes.byref(shape), layers, num_layers, ctypes.byref(step))

    def product(self, rows: Tensor, matrix: PackedMatrix) -> Tensor:
        """[N, in] to [N, out] float32."""
        rows = rows.contiguous()
        struct: MatrixStruct = matrix.struct
        out = torch.empty(len(rows), struct.out_features)
        self._product(rows.data_ptr(), len(rows), ctypes.byref(struct), out.data_ptr())
        return out


def native_products(dtype: torch.dtype, device: torch.device) -> Kernels | None:
    """Kernels for matrices of a type, or None if there are none for it, its device or this
    machine. A matrix must have an even number of columns."""
    if device.type != "cpu" or dtype not in (torch.bfloat16, torch.float32):
        return None
    library = native_library()
    return None if library is None else Kernels(library, dtype)


def native_kernels(dtype: torch.dtype, device: torch.device, shape: DecoderShape) -> Kernels | None:
    """Kernels for a decoder, or None if there are none for its shape, device or this machine."""
    fits = (
        shape.kv.head_dim in HEAD_DIMS
        and shape.num_heads % shape.kv.num_kv_heads == 0
        and shape.hidden % LANES == 0
        and shape.intermediate % LANES == 0
    )
    return native_products(dtype, device) if fits else None
