"""What a verification rule makes of one node: drafts to try one by one, and what comes after them.

A plan has no chance left in it but the coins: the first draft whose coin falls below its acceptance
is the LLM's token; if there is none, the token is drawn from the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from actors.verification import Draws, Probabilities


class Below(NamedTuple):
    """What was proposed below a node.

    Attributes:
        children: tokens of its children in the tree.
        draws: what draft models drew here, whether or not it got into the tree: not one draft is
            left out because of what it is.
    """

    children: Sequence[int] = ()
    draws: Sequence[Draws] = ()


class Try(NamedTuple):
    """A draft, and the probability with which it is accepted once it is tried."""

    token_id: int
    acceptance: float


@dataclass(frozen=True)
class Plan:
    """How the LLM's token at a node is chosen.

    Attributes:
        tries: in order.
        rest: [vocab] what it is drawn from if no draft was accepted; sums to 1.
    """

    tries: tuple[Try, ...]
    rest: Probabilities

    def accepted(self, coins: Sequence[float]) -> int | None:
        """The token of the first draft that is accepted; None if all are rejected.

        Args:
            coins: one for each try, uniform in (0, 1) and independent.
        """
        for (token, acceptance), coin in zip(self.tries, coins, strict=True):
            if coin < acceptance:
                return token
        return None


class Planner(Protocol):
    """A verification rule at one node. Pure."""

    def plan(self, target: Probabilities, below: Below) -> Plan:
        """Decide what to try.

        Args:
            target: [vocab] the LLM's distribution after every logit step; sums to 1.
        """
