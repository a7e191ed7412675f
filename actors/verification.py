"""The rules by which drafts are verified: their names, and what a draft model drew for one.

Some rules weigh a draft against the distribution from which it was drawn, so that distribution
has to travel. It does so on a support of at most `MAX_SUPPORT` tokens: a draft model that draws
for such a rule draws from nothing else, so that what travels is all of it. Weights are values
that float32 holds, so they arrive as the numbers that were drawn from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from actors.errors import ProtocolError
from actors.tree import CONTEXT

Probabilities = npt.NDArray[np.float64]

MAX_SUPPORT = 64


class Rule(StrEnum):
    """How the LLM's own token at a node comes about, where drafts stand below it.

    All but `TYPICAL` leave the LLM's distribution as it is.
    """

    COUPLED = "coupled"
    """One draw under the noise that the draft models share."""
    NAIVE = "naive"
    """The same draw; the drafts come from a noise of their own."""
    MSS = "mss"
    """Multi-step speculative sampling (SpecInfer)."""
    SPECTR = "spectr"
    """k-sequential selection (SpecTr)."""
    TYPICAL = "typical"
    """Any draft that is probable enough (Medusa). Changes the distribution."""

    @property
    def weighs_draws(self) -> bool:
        """True if drafts are weighed against what they were drawn from.

        Then it must not depend on what is drawn below a node whether the node stays in the tree:
        if it goes, its own next token comes about in another way, at the next step. So trees are
        cut level by level, and what a level keeps does not depend on those below it.
        """
        return self in (Rule.MSS, Rule.SPECTR)


@dataclass(frozen=True)
class Draws:
    """What one draft model drew below one node.

    Attributes:
        token_ids: in the order in which they were drawn.
        support_ids: the tokens that could be drawn.
        weights: of each of these, in proportion to its probability before the first draw.

    Raises:
        ProtocolError: if they cannot have been drawn so.
    """

    token_ids: tuple[int, ...]
    support_ids: tuple[int, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.support_ids) == len(self.weights) <= MAX_SUPPORT:
            raise ProtocolError(
                f"draws have {len(self.support_ids)} tokens and {len(self.weights)} weights"
            )
        if not all(math.isfinite(weight) and weight > 0.0 for weight in self.weights):
            raise ProtocolError("a weight of a draft distribution is not above 0")
        if len(self.places) < len(self.support_ids):
            raise ProtocolError("a draft distribution names a token twice")
        if not self.places.keys() >= set(self.token_ids):
            raise ProtocolError("a token was drawn that could not be drawn")

    @cached_property
    def places(self) -> dict[int, int]:
        """Where each token of the support stands in it."""
        return {token: place for place, token in enumerate(self.support_ids)}

    @cached_property
    def probabilities(self) -> Probabilities:
        """[support] of the first draw."""
        return normalized(np.array(self.weights, dtype=np.float64))

    @property
    def repeats(self) -> bool:
        """True if a token was drawn twice."""
        return len(set(self.token_ids)) < len(self.token_ids)


def normalized(weights: Probabilities) -> Probabilities:
    """In proportion, summing to 1."""
    shares: Probabilities = weights / weights.sum()
    return shares


@dataclass(frozen=True)
class NodeDraws:
    """What one draft model drew below one node of a tree.

    Attributes:
        node: its index; `CONTEXT` is what the tree hangs off.
    """

    node: int
    draws: Draws


def restricted_draws(draws: Iterable[NodeDraws], nodes: Sequence[int]) -> tuple[NodeDraws, ...]:
    """Those below `nodes`, which are all that is left of a tree, and below the context."""
    places = {CONTEXT: CONTEXT} | {node: place for place, node in enumerate(nodes)}
    return tuple(NodeDraws(places[one.node], one.draws) for one in draws if one.node in places)
