"""Draft trees for many sessions side by side, one forward pass for each depth.

The first pass runs what is new of every session and ends at its root; each later one runs the
frontiers of all trees together. Keys and values of the tree stay in the call's lanes; only those of
committed tokens go to the sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor

from actors.ssm.candidates import CandidateRanker, DrawRules, Parent
from actors.ssm.growth import Growth
from actors.ssm.inference import FusedDraft
from actors.ssm.lanes import Lanes
from actors.ssm.sessions import Session
from actors.tree import CONTEXT


@dataclass(frozen=True)
class Sprout:
    """A session and the tree that is to grow below its last token."""

    session: Session
    rules: DrawRules
    growth: Growth


def catch_up(model: FusedDraft, session: Session, num_tokens: int) -> None:
    """Cache the session's next `num_tokens` tokens; fewer than are pending."""
    window = model.shape.window
    lanes = Lanes([session.context(window)], [session.num_cached], window)
    span = lanes.tail([num_tokens])
    model.forward(torch.tensor(session.pending[:num_tokens]), lanes, span)
    session.append(lanes.keys_values[:, :, 0, :, span.start : span.stop])


def expand(model: FusedDraft, ranker: CandidateRanker, sprouts: Sequence[Sprout]) -> None:
    """Grow every tree to its end; caches all but the last token of each session."""
    window = model.shape.window
    lanes = Lanes(
        [sprout.session.context(window) for sprout in sprouts],
        [sprout.session.num_cached for sprout in sprouts],
        window,
    )
    hidden, root_rows = _run_pending(model, lanes, [sprout.session for sprout in sprouts])
    rows = [{CONTEXT: row} for row in root_rows]
    growths = [sprout.growth for sprout in sprouts]
    depth = 0
    while True:
        _add_children(ranker, sprouts, model.logits(hidden))
        counts = [len(growth.frontier) for growth in growths]
        if not any(counts):
            return
        depth += 1
        tokens = [growth.token_ids[node] for growth in growths for node in growth.frontier]
        parents = [
            lane_rows[growth.parents[node]]
            for growth, lane_rows in zip(growths, rows, strict=True)
            for node in growth.frontier
        ]
        hidden = model.forward(torch.tensor(tokens), lanes, lanes.children(counts, parents, depth))
        rows = [{node: row for row, node in enumerate(growth.frontier)} for growth in growths]


def _run_pending(
    model: FusedDraft, lanes: Lanes, sessions: Sequence[Session]
) -> tuple[Tensor, list[int]]:
    """Run what is not cached yet of every session.

    Returns:
        The roots' final states, [sessions, width], and their rows within the lanes' span.
    """
    pending = [session.pending for session in sessions]
    counts = [len(tokens) for tokens in pending]
    span = lanes.tail(counts)
    hidden = model.forward(torch.tensor(list(chain.from_iterable(pending))), lanes, span)
    for lane, (session, count) in enumerate(zip(sessions, counts, strict=True)):
        known = slice(span.start, span.start + count - 1)
        session.append(lanes.keys_values[:, :, lane, :, known])
    roots = [end - 1 for end in accumulate(counts)]
    return hidden[roots], [count - 1 for count in counts]


def _add_children(ranker: CandidateRanker, sprouts: Sequence[Sprout], logits: Tensor) -> None:
    """Give the frontier nodes of all trees their children; `logits` has a row for each node."""
    parents = [
        Parent(
            sprout.rules,
            len(sprout.session.token_ids) + sprout.growth.depth,
            sprout.growth.num_children,
        )
        for sprout in sprouts
        for _ in sprout.growth.frontier
    ]
    families = iter(ranker.children(parents, logits))
    for sprout in sprouts:
        if sprout.growth.frontier:
            sprout.growth.add([next(families) for _ in sprout.growth.frontier])
