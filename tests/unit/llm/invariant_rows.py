"""Tests' demand that rows of int8 models do not depend on each other.

Attention and norms are not int8's own: where torch computes them and is at fault, the demand is
waived. Products are int8's own everywhere, and native layers as a whole are ours.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from actors.decoder.linear import Int8Product, NativeProduct, Product
from actors.decoder.native.decoder import NativeDecoder
from actors.llm.invariance import is_batch_invariant
from actors.llm.loading import LoadedModel


def demand_invariant_rows(loaded: LoadedModel) -> None:
    """Fail the test if rows depend on each other, or skip it if that is not int8's fault.

    Args:
        loaded: a whole model with int8 weights.
    """
    if is_batch_invariant(loaded):
        return
    if isinstance(getattr(loaded.model._part, "_decoder", None), NativeDecoder):
        pytest.fail("rows depend on each other in native code")
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Int8Product, NativeProduct):
            patch.setattr(kind, "__call__", _row_by_row(kind.__call__))
        if is_batch_invariant(loaded):
            pytest.fail("rows depend on each other in products with int8 weights")
    pytest.skip("rows depend on each other in torch's attention or norms on this machine")


def _row_by_row(call):
    """A product's call, in which no row can depend on another."""

    def called(product: Product, rows: Tensor) -> Tensor:
        if len(rows) < 2:
            return call(product, rows)
        return torch.cat([call(product, row[None]) for row in rows])

    return called
