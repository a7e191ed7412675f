"""The sliced loss against the same formula in plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from actors.ssm.boost_tuning import loss
from actors.ssm.boost_tuning.loss import Targets, distillation_loss

VOCAB, CUT, WIDTH, PLACES, BEST = 40, 24, 16, 50, 6


@pytest.fixture
def made() -> tuple[Tensor, Tensor, Tensor, Targets]:
    torch.manual_seed(1)
    cut_index = torch.full((VOCAB,), -1)
    cut_index[torch.randperm(VOCAB)[:CUT]] = torch.arange(CUT)
    top = torch.log_softmax(torch.randn(PLACES, VOCAB) * 2, -1).topk(BEST, -1)
    targets = Targets(top.indices, top.values, torch.rand(PLACES), cut_index, hard_share=0.25)
    return torch.randn(PLACES, WIDTH), torch.randn(CUT, WIDTH), torch.randn(CUT), targets


def plain_loss(hidden: Tensor, head: Tensor, bias: Tensor, targets: Targets) -> Tensor:
    logprobs = torch.log_softmax(hidden @ head.T + bias, -1)
    wanted = (targets.probabilities * logprobs.gather(1, targets.index)).sum(-1)
    return -(targets.weights * wanted).mean()


def test_value_and_gradients_are_those_of_the_formula(
    made: tuple[Tensor, Tensor, Tensor, Targets], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "ROWS_AT_ONCE", 16)
    *parts, targets = made
    ours = [part.clone().requires_grad_() for part in parts]
    theirs = [part.clone().requires_grad_() for part in parts]
    value = distillation_loss(*ours, targets)
    expected = plain_loss(*theirs, targets)
    (value * 2).backward()  # type: ignore[no-untyped-call]
    (expected * 2).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(value, expected, rtol=0.02, atol=0.02)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad is not None and other.grad is not None
        difference = (mine.grad - other.grad).norm() / other.grad.norm()
        assert difference < 0.02


def test_targets_renormalise_what_the_cut_keeps() -> None:
    cut_index = torch.tensor([0, -1, 1, -1])
    top_ids = torch.tensor([[2, 1], [1, 3]])
    logprobs = torch.tensor([[0.6, 0.2], [0.5, 0.5]]).log()
    targets = Targets(top_ids, logprobs, torch.tensor([0.5, 1.0]), cut_index)
    assert targets.probabilities.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert targets.weights.tolist() == pytest.approx([0.3, 0.0])
    hard = Targets(top_ids, logprobs, torch.ones(2), cut_index, hard_share=0.5)
    assert hard.weights[0].item() == pytest.approx(0.5 + 0.5 * 0.6)
