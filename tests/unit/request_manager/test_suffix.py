"""Suffix decoding proposes what followed in the own text and in earlier answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.request_manager.drafters import own_text
from actors.request_manager.drafters.matches import ENOUGH_PLACES
from actors.request_manager.drafters.own_text import OwnText
from actors.request_manager.drafters.suffix import (
    LEAD_TOKENS,
    MAX_STEP_S,
    MAX_WAITING,
    PIECE_TOKENS,
    SuffixDecoding,
)
from actors.request_manager.ports import Draft
from actors.tree import CONTEXT, TokenTree
from tests.unit.request_manager.learning import Ticking, by_path, drawn, ended, task

MEMORY = 1 << 16


async def suggest(drafter: SuffixDecoding, tokens: Sequence[int], **limits: int) -> Draft | None:
    """For a request that is new."""
    drafter.forget(0)
    return (await drafter.draft([task(tokens, **limits)])).get(0)


def paths(draft: Draft | None) -> list[tuple[int, ...]]:
    assert draft is not None
    return [draft.tree.path_tokens(leaf) for leaf in draft.tree.leaves()]


async def test_the_own_text_is_continued_as_it_went_on_before() -> None:
    #        0  1  2  3  4  5  6  7  8  9 10 11 12
    text = [9, 1, 2, 3, 5, 8, 2, 3, 6, 7, 1, 2, 3]
    found = by_path(await suggest(SuffixDecoding(0), text, max_depth=2))
    # Matches of three tokens and of two: squares 9 and 4.
    assert found == {
        (5,): pytest.approx(3 / 4 * 9 / 13),
        (5, 8): pytest.approx(4 / 5),
        (6,): pytest.approx(2 / 3 * 4 / 13),
        (6, 7): pytest.approx(3 / 4),
    }


async def test_text_that_repeats_itself_is_continued_to_full_depth() -> None:
    found = paths(await suggest(SuffixDecoding(0), [1, 2, 1, 2], max_depth=6))
    assert found == [(1, 2, 1, 2, 1, 2)]


async def test_nothing_known_brings_nothing() -> None:
    drafter = SuffixDecoding(MEMORY)
    assert await suggest(drafter, [1, 2, 3, 4]) is None
    assert await suggest(drafter, [1]) is None


async def test_earlier_answers_are_continued_for_others() -> None:
    drafter = SuffixDecoding(MEMORY)
    drafter.observe([ended([7, 8], [1, 2, 3, 4, 5, 6])])
    assert paths(await suggest(drafter, [50, 2, 3])) == [(4, 5, 6)]


async def test_the_end_of_a_prompt_leads_to_the_first_words_of_an_answer() -> None:
    drafter = SuffixDecoding(MEMORY)
    prompt = list(range(100, 110))
    drafter.observe([ended(prompt, [1, 2])])
    lead = prompt[-LEAD_TOKENS:]
    assert paths(await suggest(drafter, [70, *lead])) == [(1, 2)]
    # Of the prompt nothing else is kept.
    assert await suggest(drafter, prompt[:-LEAD_TOKENS]) is None


async def test_own_text_and_earlier_answers_grow_one_tree() -> None:
    drafter = SuffixDecoding(MEMORY)
    drafter.observe([ended([], [0, 0, 1, 2, 3, 4])])
    found = by_path(await suggest(drafter, [1, 2, 3, 5, 1, 2], max_depth=2))
    assert found == {
        (3,): pytest.approx(2 / 3),
        (3, 4): pytest.approx(3 / 4 / 2),
        (3, 5): pytest.approx(3 / 4 / 2),
    }


async def test_only_what_has_ended_is_kept_and_only_where_there_is_memory() -> None:
    drafter = SuffixDecoding(MEMORY)
    drafter.observe([drawn([1, 2, 3, 4, 5], TokenTree(), {CONTEXT: 6})])
    assert await suggest(drafter, [9, 2, 3]) is None
    alone = SuffixDecoding(0)
    alone.observe([ended([], [1, 2, 3, 4, 5])])
    assert await suggest(alone, [9, 2, 3]) is None


async def test_long_answers_are_kept_in_pieces_one_a_step() -> None:
    drafter = SuffixDecoding(MEMORY)
    answer = list(range(1000, 1000 + 2 * PIECE_TOKENS))
    drafter.observe([ended([], answer)])
    assert paths(await suggest(drafter, answer[:3])) == [tuple(answer[3:7])]
    later = answer[PIECE_TOKENS : PIECE_TOKENS + 3]
    assert await suggest(drafter, [0, *later]) is None
    drafter.observe([])
    assert paths(await suggest(drafter, [0, *later])) == [
        tuple(answer[PIECE_TOKENS + 3 : PIECE_TOKENS + 7])
    ]


async def test_few_pieces_wait_to_be_added_and_the_latest_are_kept() -> None:
    drafter = SuffixDecoding(1 << 23)
    num_pieces = MAX_WAITING + 10
    answer = list(range(num_pieces * PIECE_TOKENS))
    drafter.observe([ended([], answer)])
    for _ in range(2 * num_pieces):
        drafter.observe([])
    for piece in (0, 9):
        assert await suggest(drafter, [-5, *answer[piece * PIECE_TOKENS :][:3]]) is None
    for piece in (10, num_pieces - 1):
        assert await suggest(drafter, [-5, *answer[piece * PIECE_TOKENS :][:3]])


async def test_requests_share_the_time_of_a_step_and_take_turns() -> None:
    drafter = SuffixDecoding(0, Ticking(MAX_STEP_S / 1.5))  # time for two, a look behind each
    tasks = [task([5, 6, 5], request_id=number) for number in range(4)]
    turns = [list(await drafter.draft(tasks)) for _ in range(4)]
    assert turns == [[0, 1], [1, 2], [2, 3], [3, 0]]


async def test_a_request_that_is_over_is_forgotten() -> None:
    drafter = SuffixDecoding(0)
    assert await drafter.draft([task([1, 2, 3, 1])])
    drafter.forget(0)
    drafter.forget(0)
    assert not await drafter.draft([task([4, 1])])


@given(text=st.lists(st.integers(0, 3), min_size=1, max_size=60), step=st.integers(1, 7))
def test_the_longest_and_most_recent_places_are_found(text: list[int], step: int) -> None:
    own = OwnText()
    for end in range(1, len(text), step):
        own.extend(text[:end])
    own.extend(text)
    found = [match.length for match in own.matches(text, 9, 1)]
    everywhere = sorted((length_at(text, end) for end in range(len(text) - 1)), reverse=True)
    everywhere = [length for length in everywhere if length]
    enough = min(ENOUGH_PLACES, len(everywhere))
    capped = sorted((min(length, own_text.VECTOR_TOKENS) for length in found), reverse=True)
    assert capped[:enough] == [min(one, own_text.VECTOR_TOKENS) for one in everywhere[:enough]]
    assert len(found) <= len(everywhere)


def length_at(text: Sequence[int], end: int) -> int:
    last, length = len(text) - 1, 0
    while length < min(9, end + 1) and text[end - length] == text[last - length]:
        length += 1
    return length
