"""Prompt lookup proposes what followed the longest earlier match."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.ports import Draft, DraftTask
from actors.sampling import SamplingParams


async def look_up(
    tokens: Sequence[int], max_depth: int = 4, lookup: PromptLookup | None = None
) -> Draft | None:
    task = DraftTask(0, tokens, len(tokens), SamplingParams(), 32, max_depth)
    return (await (lookup or PromptLookup()).draft([task])).get(0)


def paths(draft: Draft | None) -> list[tuple[int, ...]]:
    assert draft is not None
    return [draft.tree.path_tokens(leaf) for leaf in draft.tree.leaves()]


async def test_longest_match_comes_first_then_the_most_recent() -> None:
    #        0  1  2  3  4  5  6  7  8  9 10 11 12
    text = [9, 1, 2, 3, 5, 8, 2, 3, 6, 7, 1, 2, 3]
    assert paths(await look_up(text)) == [(5, 8, 2, 3), (6, 7, 1, 2)]


async def test_a_single_token_matches_where_no_pair_does() -> None:
    assert paths(await look_up([4, 5, 6, 7, 8, 5], max_depth=2)) == [(6, 7)]


async def test_text_without_repetition_brings_nothing() -> None:
    assert await look_up([1, 2, 3, 4]) is None
    assert await look_up([1]) is None


async def test_periodic_text_is_proposed_to_full_depth() -> None:
    assert (1, 2, 1, 2, 1, 2) in paths(await look_up([1, 2, 1, 2], max_depth=6))
    assert paths(await look_up([7, 7], max_depth=5)) == [(7, 7, 7, 7, 7)]


async def test_continuations_with_a_common_start_share_nodes() -> None:
    draft = await look_up([1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2], max_depth=2)
    assert draft is not None
    assert paths(draft) == [(3, 5), (3, 4)]
    assert len(draft.tree) == 3


async def test_scores_are_probabilities_and_grow_with_the_match() -> None:
    short = await look_up([1, 9, 5, 1], max_depth=1)
    long = await look_up([1, 2, 3, 4, 5, 9, 1, 2, 3, 4], max_depth=1)
    assert short is not None
    assert long is not None
    assert 0.0 < short.scores[0] < long.scores[0] < 1.0


async def test_siblings_never_sum_to_more_than_one() -> None:
    draft = await look_up([1, 2, 1, 3, 1, 4, 1, 5, 1, 6, 1], max_depth=3)
    assert draft is not None
    roots = [s for s, parent in zip(draft.scores, draft.tree.parents, strict=True) if parent == -1]
    assert len(roots) > 1
    assert sum(roots) < 1.0


async def test_the_index_grows_with_the_text_and_is_forgotten() -> None:
    lookup = PromptLookup()
    text = [1, 2, 3, 9]
    assert await look_up(text, lookup=lookup) is None
    for token, expected in [(1, (2, 3, 9, 1)), (2, (3, 9, 1, 2))]:
        text.append(token)
        assert paths(await look_up(text, lookup=lookup)) == [expected]
    lookup.forget(0)
    assert await look_up([5, 6], lookup=lookup) is None


@given(
    text=st.lists(st.integers(0, 3), min_size=2, max_size=40),
    least=st.floats(0.01, 0.9),
)
async def test_what_is_not_worth_enough_is_left_out_and_nothing_else(
    text: list[int], least: float
) -> None:
    def by_path(draft: Draft | None) -> dict[tuple[int, ...], float]:
        if draft is None:
            return {}
        tree = draft.tree
        return {tree.path_tokens(node): draft.scores[node] for node in range(len(tree))}

    task = DraftTask(0, text, len(text), SamplingParams(), 32, 6)
    everything = by_path((await PromptLookup().draft([task])).get(0))
    found = by_path((await PromptLookup().draft([replace(task, least_probability=least)])).get(0))
    worth = {
        path: math.prod(everything[path[: end + 1]] for end in range(len(path)))
        for path in everything
    }
    assert found == {path: everything[path] for path in everything if worth[path] >= least}
