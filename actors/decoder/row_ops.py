"""What a decoder layer does between its matrix products, behind one interface.

Two implementations: torch operations, for every device and type, and native kernels for CPUs. Both
give a row the same result whatever else is in the step; they differ from each other in the last
bits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.decoder.batch import StepBatch
from actors.decoder.kv_cache import KVShape
from actors.decoder.native.kernels import Kernels, native_kernels
from actors.decoder.tree_attention import attend, stable_products

Rotary = Any
"""A rotary embedding as in transformers, which is not typed: a tensor of the wanted type and [1, N]
positions to [1, N, head_dim] cosines and sines."""


@dataclass(frozen=True)
class LayerRules:
    """What a layer's attention wants beside its weights.

    Attributes:
        query_norm, key_norm: [head_dim] weights of a norm of each head, or None.
        window: positions that a row sees, its own included; None for all.
    """

    query_norm: Tensor | None
    key_norm: Tensor | None
    window: int | None


@dataclass(frozen=True)
class Rotations:
    """[N, head_dim] cosines and sines of a step's positions, in the form of their `RowOps`."""

    cos: Tensor
    sin: Tensor


class RowOps(Protocol):
    """The work between products; all arguments are [N, ...] rows of one step."""

    def context(self) -> AbstractContextManager[None]:
        """Entered around all layers of a step."""

    def rotations(self, batch: StepBatch) -> Rotations:
        """Made once for all layers."""

    def add_norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """Adds `delta` to `residual` in place; returns the RMS norm of the sum."""

    def attention(
        self, qkv: Tensor, rules: LayerRules, kv: Tensor, batch: StepBatch, rotations: Rotations
    ) -> Tensor:
        """[N, (heads + 2 * kv_heads) * head_dim] to [N, heads * head_dim]; changes `qkv` and writes
        the rows' keys and values to the cache layer `kv`."""

    def activation(self, gate_up: Tensor) -> Tensor:
        """[N, 2F], gate and up side by side, to silu(gate) * up."""


class TorchRowOps:
    """With torch operations.

    Args:
        rotary: the model's own.
        dtype, device: of the model.
        num_heads: query heads.
        shape: of the KV.
        eps: of the norms.
    """

    def __init__(
        self,
        rotary: Rotary,
        dtype: torch.dtype,
        device: torch.device,
        num_heads: int,
        shape: KVShape,
        eps: float,
    ) -> None:
        self._rotary = rotary
        self._probe = torch.empty(0, dtype=dtype, device=device)
        self._num_heads = num_heads
        self._shape = shape
        self._eps = eps
        # rotate_half(x) = roll(x) with the first half negated; the sign goes into the sines.
        self._sign = torch.ones(shape.head_dim, dtype=dtype, device=device)
        self._sign[: shape.head_dim // 2] = -1

    def context(self) -> AbstractContextManager[None]:
        return stable_products(self._probe.dtype)

    def rotations(self, batch: StepBatch) -> Rotations:
        cos, sin = self._rotary(self._probe, batch.positions[None])
        return Rotations(cos[0][:, None], (sin[0] * self._sign)[:, None])  # [N, 1, head_dim]

    def add_norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        if delta is not None:
            residual.add_(delta)
        return self._norm(residual, weight)

    def attention(
        self, qkv: Tensor, rules: LayerRules, kv: Tensor, batch: StepBatch, rotations: Rotations
    ) -> Tensor:
        heads, kv_heads, dim = self._num_heads, self._shape.num_kv_heads, self._shape.head_dim
        qkv = qkv.view(len(qkv), -1, dim)
        queries, keys = qkv[:, :heads], qkv[:, heads:-kv_heads]
        if rules.query_norm is not None and rules.key_norm is not None:
            queries.copy_(self._norm(queries, rules.query_norm))
            keys.copy_(self._norm(keys, rules.key_norm))
        rotated = qkv[:, :-kv_heads]
        turned = rotated.roll(dim // 2, -1)
        torch.addcmul(rotated * rotations.cos, turned, rotations.sin, out=rotated)
        pairs = qkv[:, heads:].view(len(qkv), 2, kv_heads, dim)
        kv.index_copy_(2, batch.slots, pairs.permute(1, 2, 0, 3))
        return attend(queries, kv, batch, dim**-0.5, rules.window)

    def activation(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows, weight.shape, weight, self._eps)


class NativeRowOps:
    """With native kernels; the model is on the CPU.

    Args:
        rotary: the model's own.
        kernels: made for the model's type and shapes.
    """

    def __init__(self, rotary: Rotary, kernels: Kernels) -> None:
        self._rotary = rotary
        self._probe = torch.empty(0, dtype=torch.float32)
        self._kernels = kernels

    def context(self) -> AbstractContextManager[None]:
        return nullcontext()

    def rotations(self, batch: StepBatch) -> Rotations:
        cos, sin = self._rotary(self._probe, batch.positions[None])
        return Rotations(cos[0].contiguous(), sin[0].contiguous())

    def add_norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        return self._kernels.add_rms_norm(residual, delta, weight)

    def attention(
        self, qkv: Tensor, rules: LayerRules, kv: Tensor, batch: StepBatch, rotations: Rotations
    ) -> Tensor:
        self._kernels.rotate_and_store(
            qkv, rotations.cos, rotations.sin, rules.query_norm, rules.key_norm, kv, batch.slots
        )
        return self._kernels.attend(qkv, kv, batch.layout, rules.window)

    def activation(self, gate_up: Tensor) -> Tensor:
        return self._kernels.silu_mul(gate_up)


def row_ops(
    rotary: Rotary,
    weight: Tensor,
    num_heads: int,
    shape: KVShape,
    widths: tuple[int, int],
    eps: float,
) -> RowOps:
    """Native kernels where there are any, else torch.

    Args:
        weight: any of the model's, for its type and device.
        widths: hidden and intermediate size.
    """
    kernels = native_kernels(weight.dtype, weight.device, num_heads, shape, widths, eps)
    if kernels is not None:
        return NativeRowOps(rotary, kernels)
    return TorchRowOps(rotary, weight.dtype, weight.device, num_heads, shape, eps)
