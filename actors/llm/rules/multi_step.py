"""Multi-step speculative sampling: `VerifyStochastic` of SpecInfer (Miao et al., ASPLOS 2024).

Drafts are tried in the order in which they were drawn. A draft x from q is accepted with
probability min(1, r(x) / q(x)), where r begins as the LLM's distribution; after each rejection r
becomes norm(max(0, r - q)), and that is what remains to draw from (theorem 4.2: the token is
distributed as the LLM says).

It holds for drafts that were *drawn*, each from the q that it is weighed against: a draft model
draws without replacement, so its next draft comes from q without the tokens before, renormalised.
A token that two draft models drew is tried twice. Taking the k best tokens instead, or leaving out
a draft because of what it is, changes the distribution.
"""

from __future__ import annotations

import numpy as np

from actors.llm.rules.plan import Below, Plan, Try
from actors.verification import Probabilities, normalized


class MultiStep:
    """The rule `mss`. The drafts of one model are distinct."""

    def plan(self, target: Probabilities, below: Below) -> Plan:
        tries: list[Try] = []
        rest = target
        for drawn in below.draws:
            support = np.array(drawn.support_ids)
            left = drawn.probabilities.copy()
            for token in drawn.token_ids:
                share, place = normalized(left), drawn.places[token]
                acceptance = min(1.0, float(rest[token] / share[place]))
                tries.append(Try(token, acceptance))
                if acceptance == 1.0:
                    return Plan(tuple(tries), rest)  # nothing comes after it
                rest = rest.copy()
                rest[support] = np.maximum(rest[support] - share, 0.0)
                rest = normalized(rest)
                left[place] = 0.0
        return Plan(tuple(tries), rest)
