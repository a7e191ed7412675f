"""Draft trees for many sessions side by side, one forward pass for each depth.

The first pass runs what is new of every session and ends at its root; each later one runs the
frontiers of all trees together. Keys and values of tree nodes stand in slots that the next call
writes over; only those of committed tokens belong to the sessions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from actors.decoder.attention_groups import Span
from actors.decoder.kv_cache import Slots
from actors.ssm.candidates import CandidateRanker, DrawRules, Parent
from actors.ssm.growth import Growth
from actors.ssm.inference import FusedDraft
from actors.ssm.pass_worth import PassWorth
from actors.ssm.sessions import Session, SessionStore
from actors.tree import CONTEXT, TokenTree


@dataclass(frozen=True)
class Sprout:
    """A session and the tree that is to grow below its last token."""

    session: Session
    rules: DrawRules
    growth: Growth


def catch_up(model: FusedDraft, store: SessionStore, session: Session, num_tokens: int) -> None:
    """Cache the session's next `num_tokens` tokens; fewer than are pending."""
    model.forward([session.take_pending(num_tokens, 0)], store.cache)


def expand(
    model: FusedDraft,
    ranker: CandidateRanker,
    store: SessionStore,
    sprouts: Sequence[Sprout],
    worth: PassWorth,
    tokens_per_s: float,
) -> None:
    """Grow every tree to its end; caches all tokens of each session.

    Trees stop growing where there are no slots left for their nodes, or where a pass does not pay.

    Args:
        worth: learns from the passes.
        tokens_per_s: what a second is worth.
    """
    hidden = _run_pending(model, store, [sprout.session for sprout in sprouts])
    _add_children(ranker, sprouts, model.logits(hidden))
    expanded = [_Expanded(sprout) for sprout in sprouts]
    free = store.tree_slots
    while True:
        num_rows = 0
        for sprout in sprouts:
            num_rows += sprout.growth.trim(len(free) - num_rows)
        growing = [sprout.growth for sprout in sprouts if sprout.growth.frontier]
        promise = sum(growth.promise for growth in growing)
        if not num_rows or not worth.decide(promise, num_rows, tokens_per_s):
            return
        since = time.perf_counter()
        hidden = model.forward(_frontiers(expanded, free), store.cache)
        free = free[num_rows:]
        _add_children(ranker, sprouts, model.logits(hidden))
        gain = sum(growth.gain for growth in growing)
        worth.observe(promise, gain, num_rows, time.perf_counter() - since)


class _Expanded:
    """The nodes of one tree that have been run, and so have keys and values."""

    def __init__(self, sprout: Sprout) -> None:
        self._growth = sprout.growth
        self._start = len(sprout.session.token_ids)
        self._places = sprout.session.slots[: self._start]
        self._index = {CONTEXT: CONTEXT}  # by node of the growing tree
        self._token_ids: list[int] = []
        self._parents: list[int] = []

    @property
    def num_rows(self) -> int:
        """Nodes to run next."""
        return len(self._growth.frontier)

    def span(self, slots: Slots, first_row: int) -> Span:
        """The frontier as rows of a step; `slots` has one for each."""
        first_node, growth = len(self._token_ids), self._growth
        for node in growth.frontier:
            self._index[node] = len(self._token_ids)
            self._token_ids.append(growth.token_ids[node])
            self._parents.append(self._index[growth.parents[node]])
        self._places = np.concatenate((self._places, slots))
        tree = TokenTree(tuple(self._token_ids), tuple(self._parents))
        return Span(tree, self._start, first_row, self._places, first_node)


def _frontiers(expanded: Sequence[_Expanded], free: Slots) -> list[Span]:
    """The frontiers of all trees, for which there are slots enough."""
    spans: list[Span] = []
    first_row = 0
    for tree in expanded:
        if tree.num_rows:
            end = first_row + tree.num_rows
            spans.append(tree.span(free[first_row:end], first_row))
            first_row = end
    return spans


def _run_pending(model: FusedDraft, store: SessionStore, sessions: Sequence[Session]) -> Tensor:
    """Run what is not cached yet of every session; the roots' final states, [sessions, width]."""
    spans: list[Span] = []
    roots = []
    num_rows = 0
    for session in sessions:
        count = len(session.pending)
        spans.append(session.take_pending(count, num_rows))
        num_rows += count
        roots.append(num_rows - 1)
    hidden = model.forward(spans, store.cache)
    return hidden if num_rows == len(roots) else hidden[roots]


def _add_children(ranker: CandidateRanker, sprouts: Sequence[Sprout], logits: Tensor) -> None:
    """Give the frontier nodes of all trees their children; `logits` has a row for each node."""
    parents = [
        Parent(
            sprout.rules,
            len(sprout.session.token_ids) + sprout.growth.depth,
            sprout.growth.num_children,
            sprout.growth.path(node) if sprout.rules.sampling.penalizes else (),
        )
        for sprout in sprouts
        for node in sprout.growth.frontier
    ]
    families = iter(ranker.families(parents, logits))
    for sprout in sprouts:
        if sprout.growth.frontier:
            born = [next(families) for _ in sprout.growth.frontier]
            sprout.growth.add([one.children for one in born], [one.draws for one in born])
