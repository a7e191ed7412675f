"""Merge: the drafts of several drafters for one request become one tree, cut to a budget.

Nodes are keyed by path: a token that two drafters propose after the same tokens is one node with
two proposals. Assumes nothing of the drafters: a draft that breaks the rules is left out whole
and reported, since a wrong drafter may cost speed and nothing else. How large the budget should
be is decided elsewhere (`budget`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from actors.request_manager.drafter_names import kind_of
from actors.request_manager.ports import Draft
from actors.tree import CONTEXT, TokenTree
from actors.verification import NodeDraws, Rule, restricted_draws


class Proposal(NamedTuple):
    """Who proposed a node.

    Attributes:
        drafter: its name.
        node: the node's index within that drafter's draft.
        score: the drafter's estimate that the node is accepted, given that its parent is.
    """

    drafter: str
    node: int
    score: float


@dataclass(frozen=True)
class MergedTree:
    """What all drafters propose below a request's root, depth first.

    Attributes:
        tree: nodes that hang off the context are children of the root.
        proposals: for each node, at least one.
        acceptance: for each node, the combined estimate in [0, 1] of the probability that it is
            accepted given that its parent is.
        draws: what draft models drew below nodes and below the root, if `rule` weighs that; all of
            it, whatever is left of it in the tree.
        rule: by which the drafts will be verified.
    """

    tree: TokenTree = field(default_factory=TokenTree)
    proposals: tuple[tuple[Proposal, ...], ...] = ()
    acceptance: tuple[float, ...] = ()
    draws: tuple[NodeDraws, ...] = ()
    rule: Rule = Rule.COUPLED

    def __len__(self) -> int:
        return len(self.tree)

    @cached_property
    def path_scores(self) -> tuple[float, ...]:
        """For each node the probability that it is accepted: never above its parent's."""
        scores: list[float] = []
        for parent, acceptance in zip(self.tree.parents, self.acceptance, strict=True):
            scores.append(acceptance if parent == CONTEXT else scores[parent] * acceptance)
        return tuple(scores)

    @cached_property
    def priorities(self) -> tuple[tuple[int, float], ...]:
        """What nodes are kept by, the least first: the path score, level by level if it must be."""
        levels = self.tree.depths if self.rule.weighs_draws else (0,) * len(self)
        return tuple((level, -score) for level, score in zip(levels, self.path_scores, strict=True))

    @property
    def promise(self) -> float:
        """How many of the nodes are expected to be accepted."""
        return sum(self.path_scores)

    def cut(self, max_nodes: int, max_depth: int) -> MergedTree:
        """The first `max_nodes` nodes by `priorities` among those that are shallow enough.

        A node never outlives its parent, whose path score is at least its own and which comes
        first among equals.

        Args:
            max_nodes: nodes to keep at most.
            max_depth: nodes on one path at most.
        """
        depths = self.tree.depths
        shallow = [node for node in range(len(self)) if depths[node] < max_depth]
        if len(shallow) == len(self) <= max_nodes:
            return self
        best = sorted(shallow, key=self.priorities.__getitem__)
        return self.restricted(sorted(best[: max(max_nodes, 0)]))

    def restricted(self, nodes: Sequence[int]) -> MergedTree:
        """The tree of `nodes` alone: ascending, and with every node its ancestors."""
        return MergedTree(
            self.tree.restricted(nodes),
            tuple(self.proposals[node] for node in nodes),
            tuple(self.acceptance[node] for node in nodes),
            restricted_draws(self.draws, nodes),
            self.rule,
        )


Estimate = Callable[[str, int, float], float]
"""From a drafter's name, a node's depth and the drafter's score to the probability that the node is
accepted, given that its parent is."""


def believe(drafter: str, depth: int, score: float) -> float:
    """The estimate that takes every drafter at its word."""
    return score


class MergeResult(NamedTuple):
    """The merged tree, and why the drafts of some drafters were left out of it."""

    merged: MergedTree
    rejected: dict[str, str]


def merge(
    drafts: Mapping[str, Draft],
    vocab_size: int,
    estimate: Estimate = believe,
    rule: Rule = Rule.COUPLED,
) -> MergeResult:
    """Merge the drafts of one request, by drafter name.

    Siblings stand in the order in which they first appear. A draft with a fault is left out.

    Args:
        drafts: by drafter name.
        vocab_size: token ids must be below it.
        estimate: corrects the drafters' own scores, which the proposals keep.
        rule: by which the drafts will be verified.
    """
    faults = {name: _fault(draft, vocab_size, rule) for name, draft in drafts.items()}
    sound = [(name, draft) for name, draft in drafts.items() if faults[name] is None]
    tree, places = TokenTree.union([draft.tree for _, draft in sound])
    proposals: list[list[Proposal]] = [[] for _ in range(len(tree))]
    for (name, draft), nodes in zip(sound, places, strict=True):
        for node, (place, score) in enumerate(zip(nodes, draft.scores, strict=True)):
            proposals[place].append(Proposal(name, node, score))
    draws = [
        NodeDraws(CONTEXT if one.node == CONTEXT else nodes[one.node], one.draws)
        for (_, draft), nodes in zip(sound, places, strict=True)
        for one in draft.draws
    ]
    acceptance = _combined(tree, proposals, estimate)
    merged = MergedTree(tree, tuple(map(tuple, proposals)), acceptance, tuple(draws), rule)
    return MergeResult(merged, {name: fault for name, fault in faults.items() if fault})


def _fault(draft: Draft, vocab_size: int, rule: Rule) -> str | None:
    """What makes a draft unusable, if anything does."""
    if len(draft.scores) != len(draft.tree):
        return f"{len(draft.scores)} scores for {len(draft.tree)} nodes"
    if max(draft.tree.token_ids, default=0) >= vocab_size:
        return f"a token id is not below {vocab_size}"
    if not all(math.isfinite(score) and 0.0 <= score <= 1.0 for score in draft.scores):
        return "a score is not in [0, 1]"
    return _fault_of_draws(draft, vocab_size, rule) if draft.draws else None


def _fault_of_draws(draft: Draft, vocab_size: int, rule: Rule) -> str | None:
    if not rule.weighs_draws:
        return f"draws, for which {rule.value} has no use"
    if len({one.node for one in draft.draws}) < len(draft.draws):
        return "draws below a node in two parts"
    if not all(CONTEXT <= one.node < len(draft.tree) for one in draft.draws):
        return "draws below a node that is not there"
    if max(max(one.draws.support_ids) for one in draft.draws) >= vocab_size:
        return f"a draw is not below {vocab_size}"
    if rule is Rule.MSS and any(one.draws.repeats for one in draft.draws):
        return "a token was drawn twice without replacement"
    return None


def _combined(
    tree: TokenTree, proposals: list[list[Proposal]], estimate: Estimate
) -> tuple[float, ...]:
    """Each node's acceptance given its parent's, from all its proposals.

    Noisy-or: 1 - Π (1 - estimate), as if each kind of proposer had its own chance to be right; of
    one kind, whose members are right and wrong together, the surest counts. At most one child of a
    node can be accepted, so siblings that sum to more than one are scaled to sum to it.
    """
    raw = []
    for node, depth in zip(proposals, tree.depths, strict=True):
        best: dict[str, float] = {}
        for who in node:
            kind, chance = kind_of(who.drafter), estimate(who.drafter, depth, who.score)
            best[kind] = max(chance, best.get(kind, 0.0))
        raw.append(1.0 - math.prod(1.0 - chance for chance in best.values()))
    sums = [0.0] * (len(tree) + 1)  # the context's children are summed in the last entry
    for parent, score in zip(tree.parents, raw, strict=True):
        sums[parent] += score
    return tuple(
        score / max(sums[parent], 1.0) for parent, score in zip(tree.parents, raw, strict=True)
    )
