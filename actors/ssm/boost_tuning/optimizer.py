"""The optimizer of a draft model: Muon (Jordan et al. 2024) for matrices, AdamW for vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import torch
from torch import nn

from actors.ssm.boost_tuning.recipe import Recipe


class MuonWithAdamW(torch.optim.Optimizer):
    """Both as one, as an engine wants it: their parameter groups and their state are shared."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
        muon = torch.optim.Muon(
            matrices,
            lr=recipe.matrix_rate,
            weight_decay=recipe.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        adamw = torch.optim.AdamW(
            vectors, lr=recipe.vector_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        self._halves: tuple[torch.optim.Optimizer, ...] = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._peaks = [group["lr"] for group in self.param_groups]
        for half in self._halves:
            half.state = self.state

    def set_rates(self, factor: float) -> None:
        """Set all learning rates to this part of their peaks."""
        for group, peak in zip(self.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter; a closure is called first."""
        loss = None if closure is None else closure()
        for half in self._halves:
            half.step()
        return loss
