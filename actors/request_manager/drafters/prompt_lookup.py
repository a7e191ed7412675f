"""Prompt lookup: what followed the last time the text read like this?

After "Prompt Lookup Decoding" (Saxena 2023), as a tree: the most recent occurrences of the longest
matching suffix each propose their continuation. A continuation that runs into the end of the text
goes on by copying itself, so that periodic text is proposed to full depth.

Assumes nothing of the model. Scores are first guesses that grow with the length of the match; the
manager calibrates them by what is accepted. What it has no use for is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from actors.request_manager.drafters.matches import continuation, match_length
from actors.request_manager.ports import Draft, DraftTask
from actors.tree import CONTEXT, TokenTree

MAX_MATCH_TOKENS = 8
"""Longer matches are not told apart."""

MAX_BRANCHES = 4
"""Occurrences that propose a continuation."""

MAX_OCCURRENCES = 24
"""Most recent occurrences of the last token pair that are compared."""


@dataclass
class _Index:
    """Where each token, and each pair of tokens, ended before; most recent last."""

    num_indexed: int = 0
    singles: dict[int, list[int]] = field(default_factory=dict)
    pairs: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def extend(self, tokens: Sequence[int]) -> None:
        """Index every place but the last, which has nothing after it."""
        for end in range(self.num_indexed, len(tokens) - 1):
            self.singles.setdefault(tokens[end], []).append(end)
            if end > 0:
                self.pairs.setdefault((tokens[end - 1], tokens[end]), []).append(end)
        self.num_indexed = max(self.num_indexed, len(tokens) - 1)

    def ends(self, tokens: Sequence[int]) -> list[int]:
        """Earlier places whose last tokens are the text's last tokens; most recent first."""
        pair = self.pairs.get((tokens[-2], tokens[-1])) if len(tokens) > 1 else None
        places = pair or self.singles.get(tokens[-1], [])
        return places[: -MAX_OCCURRENCES - 1 : -1]


class PromptLookup:
    """A drafter that copies from the request's own text. Keeps an index for each request."""

    name = "prompt_lookup"
    is_away = False

    def __init__(self) -> None:
        self._indexes: dict[int, _Index] = {}

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        """Drafts for the tasks whose text repeats itself."""
        drafts = {}
        for task in tasks:
            index = self._indexes.setdefault(task.request_id, _Index())
            index.extend(task.token_ids)
            draft = _look_up(index, task)
            if draft is not None:
                drafts[task.request_id] = draft
        return drafts

    def forget(self, request_id: int) -> None:
        self._indexes.pop(request_id, None)


def _look_up(index: _Index, task: DraftTask) -> Draft | None:
    tokens = task.token_ids
    matches = [
        (match_length(tokens, tokens, end, min(MAX_MATCH_TOKENS, end + 1)), end)
        for end in index.ends(tokens)
    ]
    if not matches or task.max_nodes < 1 or task.max_depth < 1:
        return None
    # Longest match first; among equals the order of recency is kept.
    matches.sort(key=lambda match: -match[0])
    depth = _useful_depth(matches[0][0], task.least_probability, task.max_depth)
    branches = _Branches()
    for length, end in matches[:MAX_BRANCHES]:
        branches.add(continuation(tokens, end, depth), length)
    return branches.draft(task.least_probability)


def _useful_depth(longest: int, least: float, max_depth: int) -> int:
    """How deep a path may be worth more than `least` if nothing branches off: as its scores are
    m / (m + 1), (m + 1) / (m + 2), …, they come to m / (m + depth)."""
    return min(max_depth, int(longest / least - longest)) if least else max_depth


class _Branches:
    """Continuations as one tree, those of the longest matches first."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._token_ids: list[int] = []
        self._parents: list[int] = []
        self._matched: list[int] = []  # tokens, the node's own path counted in
        self._weights: list[float] = []

    def add(self, path: Sequence[int], length: int) -> None:
        """Continue a match of `length` tokens by a path."""
        node = CONTEXT
        for depth, token in enumerate(path):
            parent, node = node, self._children.setdefault((node, token), len(self._token_ids))
            if node == len(self._token_ids):
                self._token_ids.append(token)
                self._parents.append(parent)
                self._matched.append(length + depth)
                self._weights.append(0.0)
            self._weights[node] += length * length

    def draft(self, least: float) -> Draft | None:
        """The nodes whose paths are worth at least so much, with their scores.

        Acceptance given the parent's: m / (m + 1) for a match of m tokens, the path's own tokens
        counted in; siblings share it by the squares of their matches' lengths.
        """
        family = dict.fromkeys(self._parents, 0.0)
        for parent, weight in zip(self._parents, self._weights, strict=True):
            family[parent] += weight
        places, path_scores = {CONTEXT: CONTEXT}, {CONTEXT: 1.0}
        kept: list[int] = []
        scores: list[float] = []
        for node, parent in enumerate(self._parents):
            if parent not in places:
                continue
            matched = self._matched[node]
            score = matched / (matched + 1) * self._weights[node] / family[parent]
            path_scores[node] = path_scores[parent] * score
            if path_scores[node] >= least:
                places[node] = len(kept)
                kept.append(node)
                scores.append(score)
        if not kept:
            return None
        parents = tuple(places[self._parents[node]] for node in kept)
        return Draft(
            TokenTree(tuple(self._token_ids[node] for node in kept), parents), tuple(scores)
        )
