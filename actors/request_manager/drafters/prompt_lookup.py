"""Prompt lookup: what followed the last time the text read like this?

After "Prompt Lookup Decoding" (Saxena 2023), as a tree: the most recent occurrences of the longest
matching suffix each propose their continuation. A continuation that runs into the end of the text
goes on by copying itself, so that periodic text is proposed to full depth.

Assumes nothing of the model. Scores are first guesses that grow with the length of the match; the
manager calibrates them by what is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    matches = [(_match_length(tokens, end), end) for end in index.ends(tokens)]
    if not matches or task.max_nodes < 1 or task.max_depth < 1:
        return None
    # Longest match first; among equals the order of recency is kept.
    matches.sort(key=lambda match: -match[0])
    best = matches[:MAX_BRANCHES]
    paths = [_continuation(tokens, end, task.max_depth) for _, end in best]
    tree = TokenTree.from_paths(paths)
    return Draft(tree, _scores(tree, paths, [length for length, _ in best]))


def _match_length(tokens: Sequence[int], end: int) -> int:
    last = len(tokens) - 1
    length = 1
    while (
        length < MAX_MATCH_TOKENS
        and length <= end
        and tokens[end - length] == tokens[last - length]
    ):
        length += 1
    return length


def _continuation(tokens: Sequence[int], end: int, max_depth: int) -> list[int]:
    period = len(tokens) - 1 - end
    path = list(tokens[end + 1 : end + 1 + max_depth])
    while len(path) < max_depth:
        path.append(path[len(path) - period])
    return path


def _scores(
    tree: TokenTree, paths: Sequence[Sequence[int]], match_lengths: Sequence[int]
) -> tuple[float, ...]:
    """Acceptance given the parent's: m / (m + 1) for a match of m tokens, the path's own tokens
    counted in; siblings share it by the squares of their matches' lengths."""
    weights = [0.0] * len(tree)
    longest = [0] * len(tree)
    for path, length in zip(paths, match_lengths, strict=True):
        node = CONTEXT
        for token in path:
            child = tree.child(node, token)
            assert child is not None, "the tree holds every path"
            node = child
            weights[node] += length * length
            longest[node] = max(longest[node], length)
    family = dict.fromkeys(tree.parents, 0.0)
    for node, parent in enumerate(tree.parents):
        family[parent] += weights[node]
    scores = []
    for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths, strict=True)):
        matched = longest[node] + depth
        scores.append(matched / (matched + 1) * weights[node] / family[parent])
    return tuple(scores)
