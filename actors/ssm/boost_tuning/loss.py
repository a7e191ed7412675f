"""The distillation loss: cross-entropy of a draft's cut softmax against the LLM's best words.

The LLM's distribution at a place is known by its K most probable words. What lies outside the cut,
or beyond the K, cannot be learnt: the rest is renormalised and the place weighs as much as the mass
it kept, times a weight of its own. A share of the target may be put on the LLM's own choice, its
most probable word.

Forward and backward are one pass over slices of rows, so no [places, cut] matrix ever stands in
memory; products are bfloat16, sums float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

ROWS_AT_ONCE = 256


class Targets:
    """Soft targets over the cut.

    Args:
        top_ids: [places, K] the LLM's most probable token ids, best first.
        top_logprobs: [places, K] their log-probabilities.
        weights: [places] float32: how much each place counts.
        cut_index: [vocab] place of each token id in the cut, -1 outside.
        hard_share: part of the target that goes to the first word alone.

    Attributes:
        index: [places, K] int64 into the cut; 0 where the word is outside it.
        probabilities: [places, K] float32; rows sum to 1, or are 0.
        weights: [places] float32, in proportion to the mass that the cut kept.
    """

    def __init__(
        self,
        top_ids: Tensor,
        top_logprobs: Tensor,
        weights: Tensor,
        cut_index: Tensor,
        hard_share: float = 0.0,
    ) -> None:
        index = cut_index[top_ids.long()]
        inside = index >= 0
        mass = top_logprobs.float().exp()
        mass = mass * (1 - hard_share)
        mass[:, 0] += hard_share
        mass = mass * inside
        total = mass.sum(-1, keepdim=True)
        self.index = index.clamp_min(0)
        self.probabilities = mass / total.clamp_min(1e-6)
        self.weights = weights * total[:, 0].clamp_max(1.0)


def distillation_loss(hidden: Tensor, head: Tensor, bias: Tensor, targets: Targets) -> Tensor:
    """Mean weighted cross-entropy over the places, in nats.

    Args:
        hidden: [places, width] final hidden states.
        head: [cut, width].
        bias: [cut].
    """
    loss: Tensor = _SlicedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, head, bias, targets
    )
    return loss


class _SlicedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, hidden: Tensor, head: Tensor, bias: Tensor, targets: Targets
    ) -> Tensor:
        rows, narrow_head = hidden.detach().bfloat16(), head.detach().bfloat16()
        scale = 1.0 / len(rows)
        head_grad = torch.zeros(head.shape, device=head.device)
        bias_grad = torch.zeros(bias.shape, device=bias.device)
        hidden_grads: list[Tensor] = []
        total = torch.zeros((), device=head.device)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            index, share = targets.index[part], targets.probabilities[part]
            weight = targets.weights[part] * scale
            logits = (rows[part] @ narrow_head.T).float().add_(bias.detach())
            best = logits.max(-1, keepdim=True).values
            chosen = logits.gather(1, index) - best
            logits.sub_(best).exp_()
            mass = logits.sum(-1, keepdim=True)
            total += (weight * (mass[:, 0].log() - (share * chosen).sum(-1))).sum()
            grad = logits.mul_(weight[:, None] / mass)
            grad.scatter_add_(1, index, -share * weight[:, None])
            bias_grad += grad.sum(0)
            narrow_grad = grad.bfloat16()
            hidden_grads.append(narrow_grad @ narrow_head)
            head_grad += (narrow_grad.T @ rows[part]).float()
        ctx.save_for_backward(torch.cat(hidden_grads).to(hidden.dtype), head_grad, bias_grad)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden_grad, head_grad, bias_grad = ctx.saved_tensors  # type: ignore[attr-defined]
        (grad,) = grads
        return hidden_grad * grad, head_grad * grad, bias_grad * grad, None
