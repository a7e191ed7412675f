"""k-sequential selection of SpecTr (Sun et al., NeurIPS 2023, algorithm 3).

k drafts are drawn from q independently, with replacement. Each is accepted with probability
min(1, p(x) / (γ q(x))). With β = Σ min(q, p / γ), a draft that is tried is accepted with
probability β, and x comes out of the tries with probability min(q(x), p(x) / γ) · S, where
S = Σ_{i<k} (1 - β)^i. So the rest is p - min(q, p / γ) · S, and it is nowhere negative if
S <= γ. The least such γ accepts most: between 1 and k, found by bisection. It is within
1 - 1/e of the best that any selection from k drafts can do.

Several draft models follow each other, each with the rest of the one before as its p.
"""

from __future__ import annotations

import numpy as np

from actors.llm.rules.plan import Below, Plan, Try
from actors.verification import Probabilities, normalized

_NUM_HALVINGS = 60


class KSequential:
    """The rule `spectr`."""

    def plan(self, target: Probabilities, below: Below) -> Plan:
        tries: list[Try] = []
        rest = target
        for drawn in below.draws:
            support, q = np.array(drawn.support_ids), drawn.probabilities
            gamma = least_gamma(rest[support], q, len(drawn.token_ids))
            tries += [
                Try(token, min(1.0, float(rest[token] / (gamma * q[drawn.places[token]]))))
                for token in drawn.token_ids
            ]
            taken = np.minimum(q, rest[support] / gamma)
            left = rest.copy()
            left[support] -= taken * _num_tried(float(taken.sum()), len(drawn.token_ids))
            np.maximum(left, 0.0, out=left)
            if left.sum() == 0.0:
                break  # a draft is accepted for certain
            rest = normalized(left)
        return Plan(tuple(tries), rest)


def least_gamma(p: Probabilities, q: Probabilities, num_drafts: int) -> float:
    """The least γ, from above, for which nothing is taken that p has not.

    Args:
        p, q: [support] of the LLM, and of the draft model.
    """
    low, high = 1.0, float(num_drafts)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        if _num_tried(float(np.minimum(q, p / middle).sum()), num_drafts) <= middle:
            high = middle
        else:
            low = middle
    return high


def _num_tried(acceptance: float, num_drafts: int) -> float:
    """Drafts that are tried, on average, if each is accepted with this probability."""
    rejection = max(1.0 - acceptance, 0.0)
    return float(sum(rejection**before for before in range(num_drafts)))
