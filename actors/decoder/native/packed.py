"""Matrices in the order in which the native products read them (`weights.h`)."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.decoder.layer_weights import Weights

PANEL = 32


class MatrixStruct(ctypes.Structure):
    """`Matrix` in `weights.h`."""

    _fields_ = [
        ("packed", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
    ]


class PackedMatrix:
    """A copy of a matrix and what goes with it.

    Args:
        weights: for rows of bfloat16 or float32, on the CPU; of an even number of columns.

    Attributes:
        struct: what native code is given; valid as long as this object lives.
    """

    def __init__(self, weights: Weights) -> None:
        matrix = weights.matrix.detach()
        out_features, in_features = matrix.shape
        group = 2 if weights.dtype == torch.bfloat16 else 1
        if missing := -out_features % PANEL:
            matrix = F.pad(matrix, (0, 0, 0, missing))
        panels = matrix.reshape(-1, PANEL, in_features // group, group).permute(0, 2, 1, 3)
        if matrix.dtype == torch.int8 and group == 2:
            # The halves of 64 take turns.
            panels = panels.reshape(*panels.shape[:2], 2, -1, 8).transpose(2, 3)
        self._packed = panels.contiguous()
        self._columns = [
            None if column is None else column.detach().float().contiguous()
            for column in (weights.bias, weights.scales)
        ]
        self.struct = MatrixStruct(
            self._packed.data_ptr(),
            *(None if column is None else column.data_ptr() for column in self._columns),
            in_features,
            out_features,
        )


def alternating(rows: Tensor, lanes: int) -> Tensor:
    """[2F, ...], two halves, to [2F, ...] that has `lanes` of the first, `lanes` of the second,
    and so on; F is a multiple of `lanes`."""
    halves = rows.reshape(2, -1, lanes, *rows.shape[1:])
    return halves.transpose(0, 1).reshape(rows.shape)
