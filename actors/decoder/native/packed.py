"""Matrices in the order in which the native products read them (`products.h`)."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

PANEL = 32


class MatrixStruct(ctypes.Structure):
    """`Matrix` in `products.h`."""

    _fields_ = [
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
    ]


class PackedMatrix:
    """A copy of a matrix and its bias.

    Args:
        matrix: [out, in], bfloat16 or float32, on the CPU; `in` is even.
        bias: [out] or None.

    Attributes:
        struct: what native code is given; valid as long as this object lives.
    """

    def __init__(self, matrix: Tensor, bias: Tensor | None = None) -> None:
        out_features, in_features = matrix.shape
        group = 2 if matrix.dtype == torch.bfloat16 else 1
        padded, missing = matrix.detach(), -out_features % PANEL
        if missing:
            padded = F.pad(padded, (0, 0, 0, missing))
        panels = padded.reshape(-1, PANEL, in_features // group, group)
        self._packed = panels.permute(0, 2, 1, 3).contiguous()
        self._bias = None if bias is None else bias.detach().float().contiguous()
        self.struct = MatrixStruct(
            self._packed.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            in_features,
            out_features,
        )


def alternating(rows: Tensor, lanes: int) -> Tensor:
    """[2F, ...], two halves, to [2F, ...] that has `lanes` of the first, `lanes` of the second,
    and so on; F is a multiple of `lanes`."""
    halves = rows.reshape(2, -1, lanes, *rows.shape[1:])
    return halves.transpose(0, 1).reshape(rows.shape)
