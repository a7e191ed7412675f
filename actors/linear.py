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
        self.out_features = weight.shape[0]
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

    def exact(self, rows: Tensor) -> Tensor:
        """[N, in] to [N, out] in float32 at least, although the weights may be narrower.

        In bfloat16 large outputs lie so far apart that many tie. The packed kernels sum in float32
        but return the type of their input, so a second pass fetches what rounding took:
        round(sum - round(sum)). Together that is 16 significant bits.
        """
        if rows.dtype in (torch.float32, torch.float64):
            return self(rows)
        if self._packed:
            high = self(rows)
            low = _ops._linear_pointwise.binary(rows, high.neg(), self._weight, self._bias, "add")
            return high.float().add_(low)
        if rows.device.type == "cuda":
            product = torch.mm(rows, self._weight.t(), out_dtype=torch.float32)
            return product if self._bias is None else product + self._bias
        return self(rows).float()
