"""What drafters that learn are told in the tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actors.request_manager.ports import Draft, DraftTask, StepDraws
from actors.sampling import SamplingParams
from actors.tree import CONTEXT, TokenTree


def task(
    tokens: Sequence[int],
    request_id: int = 0,
    max_nodes: int = 32,
    max_depth: int = 4,
    least: float = 0.0,
) -> DraftTask:
    return DraftTask(
        request_id,
        tokens,
        len(tokens),
        SamplingParams(),
        max_nodes,
        max_depth,
        least_probability=least,
    )


def ended(prompt: Sequence[int], answer: Sequence[int]) -> StepDraws:
    """The last step of a request: plain decoding."""
    tokens = [*prompt, *answer]
    last = len(tokens) - 1
    return StepDraws(tokens, len(prompt), last - 1, TokenTree(), {CONTEXT: tokens[last]}, True)


def drawn(before: Sequence[int], tree: TokenTree, drawn_ids: dict[int, int]) -> StepDraws:
    """A step of a request in the midst of it."""
    tokens = [*before, drawn_ids[CONTEXT]]
    return StepDraws(tokens, 1, len(before) - 1, tree, drawn_ids, False)


def by_path(draft: Draft | None) -> dict[tuple[int, ...], float]:
    """The score of each path."""
    if draft is None:
        return {}
    return {draft.tree.path_tokens(node): draft.scores[node] for node in range(len(draft.tree))}


class Ticking:
    """A clock of which a second passes at each look."""

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._ticks = self._count()

    def _count(self) -> Iterator[float]:
        now_s = 0.0
        while True:
            yield now_s
            now_s += self._seconds

    def __call__(self) -> float:
        return next(self._ticks)
