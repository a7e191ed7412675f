"""A draft model that starts from another one's weights computes what that one did."""

from __future__ import annotations

import pytest
import torch

from actors.errors import InputError
from actors.ssm.boost_tuning.adoption import adopt
from actors.ssm.model import DraftModel, DraftShape, LLMMatrices

OLD_CUT, NEW_CUT = torch.tensor([1, 4, 9, 30]), torch.tensor([0, 4, 9, 12, 30, 31])


def made(matrices: LLMMatrices, shape: DraftShape, cut: torch.Tensor) -> DraftModel:
    torch.manual_seed(len(cut))
    model = DraftModel(shape, cut, matrices)
    with torch.no_grad():
        model.bias.normal_()
    return model.requires_grad_(False)


def test_more_layers_and_another_cut(matrices: LLMMatrices) -> None:
    old = made(matrices, DraftShape(64, 1, 32), OLD_CUT)
    for weight in old.layers.parameters():
        weight.normal_(0, 0.2)
    new = made(matrices, DraftShape(64, 2, 32), NEW_CUT)
    own_bias = new.bias.clone()
    adopt(new, old)
    text = torch.tensor([[7, 3, 40, 2, 9]])
    wanted, found = old.logits(old(text)), new.logits(new(text))
    torch.testing.assert_close(found[..., [1, 2, 4]], wanted[..., [1, 2, 3]])
    assert torch.equal(new.bias[[0, 3, 5]], own_bias[[0, 3, 5]])
    assert torch.equal(new.cut_ids, NEW_CUT.int())


@pytest.mark.parametrize("shape", [DraftShape(128, 2, 32), DraftShape(64, 1, 32)])
def test_refuses_what_does_not_fit(matrices: LLMMatrices, shape: DraftShape) -> None:
    with pytest.raises(InputError, match="cannot start"):
        adopt(made(matrices, shape, NEW_CUT), made(matrices, DraftShape(64, 2, 32), OLD_CUT))
