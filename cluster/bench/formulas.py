"""What speculation should bring by the book, from acceptance and costs.

All costs are in units of one plain step of the LLM: c is what drafting takes, v what the step takes
that verifies the drafts, f what every step takes beside the model, drafts or not.

Leviathan et al., "Fast inference from transformers via speculative decoding" (ICML 2023), is the
source where an equation is named. Its assumption, one acceptance rate for all depths and
independent of everything, is known to promise too much on real text: places that are hard to guess
end most runs of drafts, and averaging hides them.
"""

from __future__ import annotations

from collections.abc import Sequence


def expected_tokens(alpha: float, gamma: float) -> float:
    """Tokens a step by equation 1: (1 - α^(γ+1)) / (1 - α), the bonus included.

    Args:
        alpha: probability that a draft is accepted when those before it are, in [0, 1].
        gamma: drafts in a row; a mean over steps need not be whole.
    """
    if alpha == 1.0:
        return gamma + 1.0
    return float((1.0 - alpha ** (gamma + 1.0)) / (1.0 - alpha))


def expected_tokens_by_depth(continued: Sequence[float]) -> float:
    """Tokens a step when depth i is accepted with its own probability: 1 + Σ_d Π_{i≤d} p_i.

    Equation 1 is the case p_i = α for γ depths. For a tree this is exact, since what is accepted
    is a path, if p_i is the measured share of the steps accepted down to depth i - 1 that accept a
    draft at depth i.

    Args:
        continued: p_i by depth, in [0, 1].
    """
    tokens, reached = 1.0, 1.0
    for probability in continued:
        reached *= probability
        tokens += reached
    return tokens


def speed_up(tokens: float, draft_cost: float, step_cost: float = 1.0, fixed: float = 0.0) -> float:
    """Tokens per second over those of plain decoding: E (1 + f) / (c + v + f).

    With v = 1 and f = 0 it is theorem 3.8, E / (γc + 1): there c is what one draft takes and γ are
    drafted in turn, here `draft_cost` is all of a step's drafting.

    Args:
        tokens: E, committed by a step.
        draft_cost, step_cost, fixed: c, v and f.
    """
    return tokens * (1.0 + fixed) / (draft_cost + step_cost + fixed)
