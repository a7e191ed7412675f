"""Starts a draft model from the weights of another one for the same LLM.

The words of the two cuts may differ, and the new one may have more layers: those it has more begin
as the identity, so that it computes what the old one did. Widths have to be the same.
"""

from __future__ import annotations

import torch

from actors.errors import InputError
from actors.ssm.model import DraftModel


def adopt(model: DraftModel, old: DraftModel) -> None:
    """Take over the weights of `old`; words that it lacks keep their bias.

    Raises:
        InputError: the shapes do not allow it.
    """
    same = (old.shape.width, old.shape.ff_width) == (model.shape.width, model.shape.ff_width)
    if not same or old.shape.num_layers > model.shape.num_layers:
        raise InputError(
            f"weights of {old.shape.num_layers} layers of width {old.shape.width} (SwiGLU "
            f"{old.shape.ff_width}) cannot start {model.shape.num_layers} layers of width "
            f"{model.shape.width} (SwiGLU {model.shape.ff_width})",
            param="--init",
        )
    weights = old.state_dict()
    bias = model.bias.detach().clone()
    known = torch.isin(model.cut_ids, old.cut_ids)
    bias[known] = old.bias.detach()[torch.searchsorted(old.cut_ids, model.cut_ids[known])]
    weights.update(cut_ids=model.cut_ids, bias=bias)
    model.load_state_dict({**model.state_dict(), **weights})
