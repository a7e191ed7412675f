"""Typical acceptance of Medusa (Cai et al., ICML 2024, section 2.3.1): lossy.

A draft is accepted if its probability is above min(ε, δ · exp(-H)), where H is the entropy of the
LLM's distribution p at the node: anything that the LLM might well have said. The output is no
longer distributed as p: drafts come out more often, tokens that nobody drafts less often. Among
several such drafts the most probable is taken. Where none is, the token is drawn from p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actors.llm.rules.plan import Below, Plan, Try
from actors.verification import Probabilities


@dataclass(frozen=True)
class Typical:
    """The rule `typical`; the thresholds are Medusa's own.

    Attributes:
        epsilon: no draft needs a higher probability than this.
        delta: what the entropy is weighed with.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    def plan(self, target: Probabilities, below: Below) -> Plan:
        ranked = sorted(below.children, key=lambda token: (-target[token], token))
        least = self.least_probability(target)
        return Plan(tuple(Try(token, 1.0) for token in ranked if target[token] > least), target)

    def least_probability(self, target: Probabilities) -> float:
        """What a draft's probability has to be above."""
        possible = target[target > 0.0]
        entropy = -float((possible * np.log(possible)).sum())  # BLAS would wake its threads
        return min(self.epsilon, self.delta * float(np.exp(-entropy)))
