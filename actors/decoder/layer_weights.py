"""What a Llama-like decoder is made of: its sizes, and the weights of its layers.

Q, K and V are one product, gate and up another. Knows nothing of how they are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actors.decoder.kv_cache import KVShape

Rotary = Any
"""A rotary embedding as in transformers, which is not typed: a tensor of the wanted type and [1, N]
positions to [1, N, head_dim] cosines and sines."""


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder.

    Attributes:
        num_heads: query heads.
        kv: of its keys and values; has the number of layers.
        hidden, intermediate: widths of the residual stream and of the MLP.
        eps: of the norms.
    """

    num_heads: int
    kv: KVShape
    hidden: int
    intermediate: int
    eps: float


@dataclass(frozen=True)
class Weights:
    """Of a linear layer y = x W^T + b.

    Attributes:
        matrix: W, [out, in]; int8 from -127 to 127 if it is quantised.
        bias: [out] or None.
        scales: [out], by which the rows of a quantised matrix are multiplied to have W; None where
            `matrix` is W.
    """

    matrix: Tensor
    bias: Tensor | None = None
    scales: Tensor | None = None

    @classmethod
    def joined(cls, *parts: Weights) -> Weights:
        """Several layers that take the same rows as one, none of them quantised; all of them have a
        bias, or none."""
        if len(parts) == 1:
            return parts[0]
        biases = [part.bias for part in parts if part.bias is not None]
        matrix = torch.cat([part.matrix for part in parts])
        return cls(matrix, torch.cat(biases) if biases else None)

    @property
    def dtype(self) -> torch.dtype:
        """Of the x that they are multiplied with."""
        return self.matrix.dtype if self.scales is None else self.scales.dtype


@dataclass(frozen=True)
class LayerRules:
    """What a layer's attention wants beside its weights.

    Attributes:
        query_norm, key_norm: [head_dim] weights of a norm of each head, or None.
        window: positions that a row sees, its own included; None for all.
    """

    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    window: int | None = None


@dataclass(frozen=True)
class LayerWeights:
    """One layer; norms are [hidden], `gate_up` has the gate's columns first."""

    input_norm: Tensor
    qkv: Weights
    rules: LayerRules
    out: Weights
    post_norm: Tensor
    gate_up: Weights
    down: Weights
