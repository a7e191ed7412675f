"""Weight-only quantisation: int8, with one scale for each output of a matrix.

A weight is rounded to the nearest of 255 multiples of its output's scale, symmetric around zero.
Rows stay in the model's type, and sums are as exact as those of the model unquantised (see
`actors.decoder.linear`). The matrices of layers and the head are quantised; embedding, norms and
biases are left as they are.

Covers layers whose matrices are all linear layers. Over shards only those of models with the fused
forward pass: each shard then has scales of its own for its part of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from actors.decoder.layer_weights import Weights
from actors.decoder.linear import linear
from actors.errors import ModelError
from actors.llm.fused_llama import MODEL_TYPES, weights_of
from actors.llm.loading import DTYPES, can_be_fused, read_config
from actors.llm.parallel.skeleton import Skeleton

LARGEST = 127
_DTYPES = (torch.bfloat16, torch.float32)
_SLICE_SIZE = 1 << 22
"""Weights that are worked on at once, in float32."""


class Int8:
    """Quantises the weights of one model, one after another.

    Attributes:
        saved_bytes: by how much what was quantised is smaller than it was.
    """

    def __init__(self) -> None:
        self.saved_bytes = 0

    def __call__(self, weights: Weights) -> Weights:
        """The same, with the matrix quantised."""
        matrix = weights.matrix
        scales = _scales_of(matrix)
        size = max(1, _SLICE_SIZE // matrix.shape[1])
        slices = [slice(first, first + size) for first in range(0, len(matrix), size)]
        quantised = torch.cat([_rounded(matrix[part], scales[part]) for part in slices])
        self.saved_bytes += matrix.nbytes - quantised.nbytes - scales.nbytes
        return replace(weights, matrix=quantised, scales=scales)

    def linear_layers_of(self, module: nn.Module) -> None:
        """Replace the linear layers in a module."""
        for name, child in list(module.named_modules()):
            if type(child) is nn.Linear:
                module.set_submodule(name, self.linear_layer(child))

    def linear_layer(self, layer: nn.Linear) -> QuantizedLinear:
        """What takes the place of one."""
        return QuantizedLinear(self(weights_of(layer)))


class QuantizedLinear(nn.Module):
    """In the place of an `nn.Linear`.

    Args:
        weights: quantised.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self._product = linear(weights)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        product = self._product(rows.flatten(0, -2))
        return product.view(*rows.shape[:-1], product.shape[-1])


def _scales_of(matrix: Tensor) -> Tensor:
    """[out], of the matrix's own type: that of the rows, where kernels want it. Since weights are
    divided by the scale as it is then, its rounding is no error."""
    largest = torch.maximum(matrix.amax(1), -matrix.amin(1)).float()
    return (largest / LARGEST).to(matrix.dtype).clamp(min=torch.finfo(matrix.dtype).tiny)


def _rounded(matrix: Tensor, scales: Tensor) -> Tensor:
    # A scale that was rounded down gives 127.33 at most, in bfloat16.
    return (matrix.float() / scales.float()[:, None]).round_().to(torch.int8)


def check_quantizable(skeleton: Skeleton, dtype: torch.dtype, tensor_parallel: int) -> None:
    """Raise ModelError if int8 does not cover a model.

    Args:
        skeleton: of the model; its weights need not be there.
        dtype: of the model.
    """
    config = skeleton.model.config
    if dtype not in _DTYPES:
        raise ModelError(f"int8 weights are not multiplied with {dtype} (llm.quantization)")
    if can_be_fused(config):
        return
    if tensor_parallel > 1:
        raise ModelError(
            f"int8 weights of {config.model_type} are not split (llm.quantization with "
            f"llm.tensor_parallel): only those of {', '.join(sorted(MODEL_TYPES))} are"
        )
    for other in _other_matrices(skeleton):
        raise ModelError(f"int8 is for linear layers, and {other} is none (llm.quantization)")


def _other_matrices(skeleton: Skeleton) -> Iterator[str]:
    """Names of the matrices of layers and head that are not those of linear layers."""
    for part in (*skeleton.layers, skeleton.head):
        names = {name for name, child in part.named_modules() if type(child) is nn.Linear}
        for name, weight in part.named_parameters():
            if weight.dim() > 1 and name.rpartition(".")[0] not in names:
                yield f"{name} of {type(part).__name__}"


def check_model(path: Path, dtype: str, tensor_parallel: int) -> None:
    """Raise ModelError if int8 does not cover the model in a folder, whose weights are not read."""
    model_dtype = DTYPES[dtype]
    check_quantizable(Skeleton(read_config(path), model_dtype), model_dtype, tensor_parallel)
