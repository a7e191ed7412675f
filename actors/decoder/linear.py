"""Linear layers with weights packed once for the kernels that will run them.

Packing copies: drop the original to have its memory back.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.decoder.layer_weights import Weights
from actors.decoder.native.kernels import Kernels, native_products
from actors.decoder.native.packed import PackedMatrix

_ops = torch.ops.mkldnn
_BATCH_HINT = 16
"""Rows to pack for; on the CPUs measured it made no difference from 1 to 64."""

_EXPANDED_SIZE = 1 << 24
"""Weights that are expanded at once."""


def can_pack(weight: Tensor) -> bool:
    """True if oneDNN has kernels for this weight on this machine."""
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if weight.device.type != "cpu" or not available:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(_ops._is_mkldnn_bf16_supported())
    if weight.dtype == torch.float16:
        return bool(_ops._is_mkldnn_fp16_supported())
    return weight.dtype == torch.float32


class Product(Protocol):
    """[N, in] rows to [N, out]."""

    def __call__(self, rows: Tensor) -> Tensor: ...


def linear(weights: Weights) -> Product:
    """A linear layer whose outputs are of the type of its rows."""
    return Linear(weights) if weights.scales is None else _Rounded(precise_product(weights))


class Linear:
    """A linear layer over torch operations.

    On CPUs oneDNN keeps a matrix in its own blocked order, which halves the time of a small step
    against `F.linear`. Elsewhere, and for types that oneDNN does not take here, it is `F.linear`.
    """

    def __init__(self, weights: Weights) -> None:
        matrix = weights.matrix.detach()
        self._packed = can_pack(matrix)
        self._bias = None if weights.bias is None else weights.bias.detach()
        self._matrix = _ops._reorder_linear_weight(matrix, _BATCH_HINT) if self._packed else matrix

    def __call__(self, rows: Tensor) -> Tensor:
        """[N, in] to [N, out]."""
        if self._packed:
            out: Tensor = _ops._linear_pointwise(rows, self._matrix, self._bias, "none", [], "")
            return out
        return F.linear(rows, self._matrix, self._bias)


class _Rounded:
    """A product with its outputs rounded to the type of its rows."""

    def __init__(self, product: Product) -> None:
        self._product = product

    def __call__(self, rows: Tensor) -> Tensor:
        return self._product(rows).to(rows.dtype)


def precise_product(weights: Weights) -> Product:
    """The product with a matrix, float32 at least: its sums are not rounded to the rows' type.

    In bfloat16 large logits lie so far apart that many tie; so heads are computed like this.
    """
    matrix = weights.matrix
    kernels = native_products(weights.dtype, matrix.device)
    if kernels is not None and matrix.shape[1] % 2 == 0:
        return NativeProduct(kernels, weights)
    if weights.scales is not None:
        return Int8Product(matrix, weights.scales, weights.bias)
    if matrix.device.type == "cpu":
        return _WideProduct(weights)
    return _MixedProduct(weights)


class NativeProduct:
    """With native code, for CPUs."""

    def __init__(self, kernels: Kernels, weights: Weights) -> None:
        self._kernels = kernels
        self._matrix = PackedMatrix(weights)

    def __call__(self, rows: Tensor) -> Tensor:
        return self._kernels.product(rows, self._matrix)


class _WideProduct:
    """With the matrix kept in float32 at least, at twice the memory: oneDNN returns the type of its
    input, and its float32 products are fast."""

    def __init__(self, weights: Weights) -> None:
        self._exact = torch.promote_types(weights.matrix.dtype, torch.float32)
        bias = None if weights.bias is None else weights.bias.to(self._exact)
        self._linear = Linear(Weights(weights.matrix.to(self._exact), bias))

    def __call__(self, rows: Tensor) -> Tensor:
        return self._linear(_paired(rows).to(self._exact))[: len(rows)]


class _MixedProduct:
    """With products that take one type and return another, where a device has them."""

    def __init__(self, weights: Weights) -> None:
        self._matrix = weights.matrix.detach()
        exact = torch.promote_types(self._matrix.dtype, torch.float32)
        self._bias = None if weights.bias is None else weights.bias.detach().to(exact)

    def __call__(self, rows: Tensor) -> Tensor:
        product = _wide_product(_paired(rows), self._matrix)[: len(rows)]
        return product if self._bias is None else product.add_(self._bias)


class Int8Product:
    """With torch's operations for a quantised matrix: its kernel for int8 on CPUs; elsewhere slices
    of the matrix are expanded, one after another, to the type of the rows."""

    def __init__(self, matrix: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        self._matrix, self._scales = matrix, scales.float()
        self._bias = None if bias is None else bias.detach().float()
        self._slice = max(1, _EXPANDED_SIZE // matrix.shape[1])
        self._expands = matrix.device.type != "cpu"

    def __call__(self, rows: Tensor) -> Tensor:
        if self._expands:
            product = self._expanded(_paired(rows))[: len(rows)].mul_(self._scales)
        else:
            product = torch._weight_int8pack_mm(rows.float(), self._matrix, self._scales)
        return product if self._bias is None else product.add_(self._bias)

    def _expanded(self, rows: Tensor) -> Tensor:
        """[N, out] before the scales."""
        firsts = range(0, len(self._matrix), self._slice)
        parts = (self._matrix[first : first + self._slice].to(rows.dtype) for first in firsts)
        return torch.cat([_wide_product(rows, part) for part in parts], 1)


def _wide_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """x W^T, float32 at least, on a device that takes one type and returns another."""
    exact = torch.promote_types(matrix.dtype, torch.float32)
    return torch.mm(rows, matrix.t(), out_dtype=exact)


def _paired(rows: Tensor) -> Tensor:
    """At least two: kernels for one row sum in another order."""
    return rows.repeat(2, 1) if len(rows) == 1 else rows
