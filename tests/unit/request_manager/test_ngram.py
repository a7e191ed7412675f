"""N-gram tables count what the LLM drew, within their memory, and weigh the contexts' lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.request_manager.drafters.ngram import MAX_LEARN_S, MAX_NODES, MAX_STEP_S, NgramTables
from actors.request_manager.drafters.ngram_table import (
    BYTES_PER_BUCKET,
    MAX_COUNT,
    NUM_WAYS,
    NgramTable,
)
from actors.request_manager.ports import Draft
from actors.tree import CONTEXT, TokenTree
from tests.unit.request_manager.learning import Ticking, by_path, drawn, task

MEMORY = 1 << 16


async def suggest(drafter: NgramTables, tokens: Sequence[int], **limits: int) -> Draft | None:
    return (await drafter.draft([task(tokens, **limits)])).get(0)


def counted(*pairs: tuple[Sequence[int], int]) -> NgramTables:
    drafter = NgramTables(MEMORY)
    for before, token in pairs:
        drafter.observe([drawn(before, TokenTree(), {CONTEXT: token})])
    return drafter


async def test_contexts_of_both_lengths_are_weighed_by_what_followed() -> None:
    drafter = counted(([1, 2], 5), ([1, 2], 5), ([1, 2], 6), ([9, 2], 7))
    found = by_path(await suggest(drafter, [1, 2], max_depth=1))
    # After 1 2: five twice, six once, 2 kinds of 3; the rest by what follows 2: 5 5 6 7.
    rest = 2 / 5
    assert found == {
        (5,): pytest.approx(2 / 5 + rest * 2 / 7),
        (6,): pytest.approx(1 / 5 + rest * 1 / 7),
        (7,): pytest.approx(rest * 1 / 7),
    }


async def test_an_unknown_pair_falls_back_on_the_last_token() -> None:
    found = by_path(await suggest(counted(([1, 2], 5)), [8, 2], max_depth=1))
    assert found == {(5,): 1 / 2}


async def test_paths_go_on_beyond_what_was_ever_written() -> None:
    drafter = counted(([1, 2], 3), ([7, 3], 4))
    assert (3, 4) in by_path(await suggest(drafter, [1, 2]))


async def test_what_was_drawn_at_rejected_nodes_is_counted_too() -> None:
    drafter = NgramTables(MEMORY)
    tree = TokenTree((10, 20, 30), (CONTEXT, 0, CONTEXT))
    drafter.observe([drawn([1, 2], tree, {CONTEXT: 10, 0: 11, 1: 21})])  # not below 30
    for context, token in (([1, 2], 10), ([2, 10], 11), ([10, 20], 21)):
        found = by_path(await suggest(drafter, context, max_depth=1))
        assert found == {(token,): pytest.approx(1 / 2 + 1 / 2 * 1 / 2)}
    assert await suggest(drafter, [2, 30]) is None


async def test_nothing_known_brings_nothing_and_trees_are_small() -> None:
    assert await suggest(NgramTables(MEMORY), [1, 2]) is None
    drafter = counted(*(([one], one + 1) for one in range(30)))
    draft = await suggest(drafter, [0], max_depth=30)
    assert draft is not None
    assert draft.tree.token_ids == tuple(range(1, MAX_NODES + 1))


async def test_requests_share_the_time_of_a_step_and_take_turns() -> None:
    drafter = NgramTables(MEMORY, Ticking(MAX_STEP_S / 1.5))
    drafter.observe([drawn([1, 2], TokenTree(), {CONTEXT: 3})])
    tasks = [task([1, 2], request_id=number) for number in range(4)]
    turns = [list(await drafter.draft(tasks)) for _ in range(4)]
    assert turns == [[0, 1], [1, 2], [2, 3], [3, 0]]


async def test_what_there_is_no_time_to_count_is_dropped_and_requests_take_turns() -> None:
    drafter = NgramTables(MEMORY, Ticking(MAX_LEARN_S / 1.5))  # time for two, a look behind each
    tree = TokenTree.chain(range(100, 132))
    pairs, known = drafter._tables[2], []
    for step in range(4):
        prompts = [(10 * step + number, 1) for number in range(4)]
        drafter.observe([drawn(prompt, tree, {CONTEXT: 100, 31: 7}) for prompt in prompts])
        known.append([number for number in range(4) if list(pairs.ways(prompts[number]))])
    assert known == [[0, 1], [1, 2], [2, 3], [0, 3]]


def test_the_likeliest_stand_first_and_the_rarest_makes_way() -> None:
    table = NgramTable(MEMORY)
    for token in (1, 2, 2, 3, 3, 3, 4):
        table.add([7], token)
    assert list(table.ways([7])) == [(3, 3), (2, 2), (1, 1), (4, 1)]
    table.add([7], 5)
    assert list(table.ways([7])) == [(3, 3), (2, 2), (1, 1), (5, 1)]
    assert list(table.ways([8])) == []


def test_large_counts_are_halved_together() -> None:
    table = NgramTable(MEMORY)
    for _ in range(MAX_COUNT):
        table.add([7], 1)
    for _ in range(11):
        table.add([7], 2)
    table.add([7], 1)
    assert list(table.ways([7])) == [(1, MAX_COUNT // 2 + 1), (2, 5)]


def test_a_context_wears_down_another_one_in_its_bucket() -> None:
    table = NgramTable(BYTES_PER_BUCKET)  # one bucket
    for _ in range(3):
        table.add([1], 5)
    table.add([2], 6)
    table.add([2], 6)
    assert list(table.ways([1])) == [(5, 1)]
    assert list(table.ways([2])) == []
    table.add([2], 6)
    assert list(table.ways([1])) == []
    assert list(table.ways([2])) == [(6, 1)]


def test_a_context_wears_down_the_rarest_of_another_one_first() -> None:
    table = NgramTable(BYTES_PER_BUCKET)  # one bucket
    for token in (5, 5, 6, 6, 7):
        table.add([1], token)
    table.add([2], 9)
    assert list(table.ways([1])) == [(5, 2), (6, 2)]
    table.add([2], 9)
    assert list(table.ways([1])) == [(5, 2), (6, 1)]
    for _ in range(3):
        table.add([2], 9)
    assert list(table.ways([1])) == []
    assert list(table.ways([2])) == [(9, 1)]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(0, NUM_WAYS + 1),
            st.one_of(st.integers(1, 4), st.integers(MAX_COUNT - 2, MAX_COUNT + 2)),
        ),
        max_size=20,
    )
)
def test_no_token_has_two_places_and_the_largest_count_is_first(runs) -> None:
    """However contexts collide, and counts are halved."""
    table = NgramTable(BYTES_PER_BUCKET)  # one bucket
    for context, token, times in runs:
        for _ in range(times):
            table.add([context], token)
            known = [way for other in (0, 1) for way in table.ways([other])]
            assert [count for _, count in known] == sorted((n for _, n in known), reverse=True)
            assert len({one for one, _ in known}) == len(known)


@given(
    stream=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=200),
    num_buckets=st.integers(1, 64),
)
def test_memory_is_bounded_and_nothing_is_counted_that_did_not_come(stream, num_buckets) -> None:
    table = NgramTable(num_buckets * BYTES_PER_BUCKET)
    num_bytes = table.num_bytes
    assert num_bytes <= num_buckets * BYTES_PER_BUCKET
    for context, token in stream:
        table.add([context], token)
    assert table.num_bytes == num_bytes
    came = Counter(stream)
    for context in range(41):
        ways = list(table.ways([context]))
        assert len(ways) <= NUM_WAYS
        assert [count for _, count in ways] == sorted((n for _, n in ways), reverse=True)
        for token, count in ways:
            assert 1 <= count <= came[context, token]
