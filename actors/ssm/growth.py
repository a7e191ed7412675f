"""How a draft tree grows: which nodes get children, and which nodes are kept in the end.

Two policies. *Static* ⟨k1, k2, …⟩ gives every node of depth d exactly k_d children (SpecInfer).
*Best first* gives all the same and lets the node budget choose. Grown depth by depth, one forward
pass each, the choice is exact: a child's path score never exceeds its parent's, so a node that is
not among the best `max_nodes` so far can have no descendant among them and is not expanded; nor is
one whose own path score is too low to be of use.

Where drafts are weighed against what they were drawn from, which nodes a depth keeps may not depend
on what is drawn below them (`actors.verification`): then each depth is settled before the next, and
best first gives it half of the nodes that are left.

Pure: knows neither models nor sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from actors.tree import CONTEXT, TokenTree
from actors.verification import Draws, NodeDraws, restricted_draws


class Policy(Protocol):
    """How a tree grows.

    Attributes:
        chooses: whether scores decide which nodes there are.
    """

    @property
    def chooses(self) -> bool: ...

    def num_children(self, depth: int) -> int:
        """Children of each expanded node of this depth; the root has depth 0."""


@dataclass(frozen=True)
class BestFirst:
    """The best nodes by path score, from at most `branching` children of each."""

    branching: int = 8
    chooses: ClassVar[bool] = True

    def num_children(self, depth: int) -> int:
        return self.branching


@dataclass(frozen=True)
class Static:
    """A fixed number of children at each depth; no deeper than there are numbers."""

    widths: tuple[int, ...]
    chooses: ClassVar[bool] = False

    def num_children(self, depth: int) -> int:
        return self.widths[depth] if depth < len(self.widths) else 0


@dataclass
class Growth:
    """A tree that grows by one depth at a time.

    Attributes:
        policy: how.
        max_nodes: nodes that are kept in the end.
        max_depth: nodes on one path.
        least_score: nodes with a lower path score are not kept.
        by_level: each depth is settled before the next.
        depth: of the nodes to expand next; 0 is the root.
        frontier: nodes to expand next; `CONTEXT` is the root.
        gain: sum of the path scores of the children that were added last and kept.
        parents, token_ids, scores: of all nodes so far; a score is given the parent's acceptance.
        draws: what was drawn below the nodes that were expanded.
    """

    policy: Policy
    max_nodes: int
    max_depth: int
    least_score: float = 0.0
    by_level: bool = False
    depth: int = 0
    frontier: list[int] = field(default_factory=lambda: [CONTEXT])
    gain: float = 0.0
    parents: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    draws: list[NodeDraws] = field(default_factory=list)
    _path_scores: list[float] = field(default_factory=list)
    _kept: list[int] = field(default_factory=list)

    @property
    def num_children(self) -> int:
        """Children that each node of the frontier should get."""
        return self.policy.num_children(self.depth)

    def add(
        self,
        children: Sequence[Sequence[tuple[int, float]]],
        draws: Sequence[Draws | None] = (),
    ) -> None:
        """Give every node of the frontier its children.

        Args:
            children: (token id, score) of each node's, best first.
            draws: what was drawn for each node, if that is to be told.
        """
        drawn = zip(self.frontier, draws, strict=False)
        self.draws += [NodeDraws(node, one) for node, one in drawn if one is not None]
        first = len(self.token_ids)
        for parent, family in zip(self.frontier, children, strict=True):
            path_score = 1.0 if parent == CONTEXT else self._path_scores[parent]
            for token, score in family:
                if path_score * score < self.least_score:
                    break  # the best come first
                self.parents.append(parent)
                self.token_ids.append(token)
                self.scores.append(score)
                self._path_scores.append(path_score * score)
        self.depth += 1
        self._kept = self._settled(first) if self.by_level else self._best()
        grown = [node for node in self._kept if node >= first]
        self.gain = sum(self._path_scores[node] for node in grown)
        ends = self.depth >= self.max_depth or not self.num_children
        self.frontier = [] if ends else grown

    def trim(self, room: int) -> int:
        """Keep at most `room` nodes of the frontier; returns how many there are."""
        del self.frontier[room:]
        return len(self.frontier)

    @property
    def promise(self) -> float:
        """Sum of the path scores of the nodes to expand next."""
        return sum(self._path_scores[node] for node in self.frontier)

    def path(self, node: int) -> list[int]:
        """The tokens from the root's child down to `node`."""
        tokens: list[int] = []
        while node != CONTEXT:
            tokens.append(self.token_ids[node])
            node = self.parents[node]
        return tokens[::-1]

    def result(self) -> tuple[TokenTree, tuple[float, ...], tuple[NodeDraws, ...]]:
        """The nodes that are kept, parents before children, their scores, and all draws there."""
        tree = TokenTree(tuple(self.token_ids), tuple(self.parents)).restricted(self._kept)
        scores = tuple(self.scores[node] for node in self._kept)
        return tree, scores, restricted_draws(self.draws, self._kept)

    def _settled(self, first: int) -> list[int]:
        """What was kept so far, and the best of the nodes from `first` on."""
        room = self.max_nodes - len(self._kept)
        if self.policy.chooses and self.depth < self.max_depth:
            room = -(-room // 2)
        fresh = range(first, len(self.token_ids))
        ranked = sorted(fresh, key=lambda node: -self._path_scores[node])
        return self._kept + sorted(ranked[:room])

    def _best(self) -> list[int]:
        """In order; among equals the ones that came first, so that no node outlives its parent."""
        ranked = sorted(range(len(self.token_ids)), key=lambda node: -self._path_scores[node])
        return sorted(ranked[: self.max_nodes])
