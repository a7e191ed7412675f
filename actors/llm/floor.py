"""The floor under a step: the model's weight matrices alone, and nothing else.

Every product of the model with as many rows as the step has tokens, head included, through the same
packed kernels as the real forward, over distinct random weights of the same shapes, in the model's
order. No attention, norms or activations; so no step with these kernels can be faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from actors.decoder.layer_weights import Weights
from actors.decoder.linear import precise_product
from actors.llm.fused_llama import as_they_are

_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Products that take the same rows and run as one."""


class Floor:
    """Times the weights of the model in a folder.

    Args:
        path: the model's folder; only its configuration is read.
        dtype: of the rows, and of the weights but for what is made of them.
        prepare: what is made of the weights of each product.
    """

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype,
        prepare: Callable[[Weights], Weights] = as_they_are,
    ) -> None:
        shapes = weight_shapes(path)
        self._products = [
            precise_product(prepare(Weights(torch.randn(shape).to(dtype)))) for shape in shapes
        ]
        self._widths = [in_features for _, in_features in shapes]
        self._dtype = dtype
        self._rows: dict[int, dict[int, torch.Tensor]] = {}

    @torch.inference_mode()
    def seconds(self, num_rows: int) -> float:
        """One pass of `num_rows` rows through all of them."""
        rows = self._rows.get(num_rows)
        if rows is None:
            rows = self._rows[num_rows] = {
                width: torch.randn(num_rows, width).to(self._dtype) for width in set(self._widths)
            }
        since = time.perf_counter()
        for product, width in zip(self._products, self._widths, strict=True):
            product(rows[width])
        return time.perf_counter() - since


def weight_shapes(path: Path) -> list[tuple[int, int]]:
    """[out, in] of every product of the model's forward pass, joined where they share rows."""
    config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes: dict[str, tuple[int, int]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            parent, _, own = name.rpartition(".")
            key = f"{parent}.{next((names[0] for names in _FUSED if own in names), own)}"
            out_features = shapes.get(key, (0, 0))[0] + module.out_features
            shapes[key] = (out_features, module.in_features)
    return list(shapes.values())
