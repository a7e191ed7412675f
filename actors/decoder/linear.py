"""Linear layers with weights packed once for the kernels that will run them.

On CPUs oneDNN keeps a weight in its own blocked order, which halves the time of a small step
against `F.linear`. Elsewhere, and for types that oneDNN does not take here, a layer is plain
`F.linear`. Packing copies: drop the original to have its memory back.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_ops = torch.ops.mkldnn
_BATCH_HINT = 16
"""Rows to pack for; on the CPUs measured it made no difference from 1 to 64."""


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


class Linear:
    """y = x W^T + b.

    Args:
        weight: [out, in].
        bias: [out] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = can_pack(weight)
        self._bias = None if bias is None else bias.detach()
        weight = weight.detach()
        self._weight = _ops._reorder_linear_weight(weight, _BATCH_HINT) if self._packed else weight

    def __call__(self, rows: Tensor) -> Tensor:
        """[N, in] to [N, out]."""
        if self._packed:
            out: Tensor = _ops._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
            return out
        return F.linear(rows, self._weight, self._bias)


class Head:
    """The last product, with float32 logits whatever the weights are.

    In bfloat16 large logits lie so far apart that many tie. The packed kernels return the type of
    their input, so on CPUs the head alone is kept in float32: no slower, since their float32
    products are fast, at twice the memory for this one matrix.

    Args:
        weight: [vocab, hidden].
        bias: [vocab] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.vocab_size = weight.shape[0]
        self._on_cpu = weight.device.type == "cpu"
        self._exact = torch.promote_types(weight.dtype, torch.float32)
        self._bias = None if bias is None else bias.detach().to(self._exact)
        self._weight = weight.detach()
        if self._on_cpu:
            self._linear = Linear(self._weight.to(self._exact), self._bias)
            del self._weight

    def __call__(self, rows: Tensor) -> Tensor:
        """[N, hidden] to [N, vocab], float32 at least."""
        if self._on_cpu:
            return self._linear(rows.to(self._exact))
        logits = torch.mm(rows, self._weight.t(), out_dtype=self._exact)
        return logits if self._bias is None else logits.add_(self._bias)
