"""Earlier answers are found where they read alike, and leave nothing behind when they go."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Sequence
from typing import SupportsIndex

from hypothesis import given
from hypothesis import strategies as st

from actors.request_manager.drafters import earlier_answers
from actors.request_manager.drafters.earlier_answers import BYTES_PER_TOKEN, EarlierAnswers
from actors.request_manager.drafters.matches import ENOUGH_PLACES, Match

ANSWERS = st.lists(st.lists(st.integers(0, 4), max_size=20), max_size=40)


def room_for(num_tokens: int) -> EarlierAnswers:
    return EarlierAnswers(num_tokens * BYTES_PER_TOKEN)


def found_in(answers: Sequence[Sequence[int]], end: Sequence[int]) -> list[tuple[int, list[int]]]:
    """All places at which two tokens or more are the same, by looking everywhere."""
    found = []
    for answer in answers:
        for last in range(len(answer) - 1):
            length = 0
            while length < min(len(end), last + 1) and answer[last - length] == end[-1 - length]:
                length += 1
            if length >= 2:
                found.append((length, list(answer[last + 1 : last + 5])))
    return sorted(found)


def test_where_it_reads_alike_and_how_it_goes_on() -> None:
    answers = room_for(100)
    answers.add([1, 2, 3, 4, 5, 6, 7])
    answers.add([9, 3, 4, 8])
    assert answers.matches([2, 3, 4], 2) == [Match(2, [8]), Match(3, [5, 6])]
    assert answers.matches([7, 7], 2) == []
    assert answers.matches([4], 2) == []


def test_an_answer_does_not_go_on_in_the_next_one() -> None:
    answers = room_for(100)
    answers.add([1, 2, 3, 4])
    answers.add([5, 6, 7, 8])
    assert answers.matches([2, 3], 9) == [Match(2, [4])]
    assert answers.matches([3, 4], 9) == []
    assert answers.matches([4, 5], 9) == []


def test_the_longer_matches_are_enough(monkeypatch) -> None:
    monkeypatch.setattr(earlier_answers, "ENOUGH_PLACES", 1)
    answers = room_for(100)
    answers.add([1, 2, 3, 4, 5])
    answers.add([7, 3, 4, 6])
    assert answers.matches([1, 2, 3, 4], 1) == [Match(4, [5])]
    assert answers.matches([9, 3, 4], 1) == [Match(2, [6]), Match(2, [5])]


def test_the_oldest_goes_first() -> None:
    answers = room_for(15)
    for first in (10, 20, 30, 40):
        answers.add([first, 1, 2, 3])
    assert list(answers) == [[20, 1, 2, 3], [30, 1, 2, 3], [40, 1, 2, 3]]
    assert answers.matches([10, 1], 3) == []


def test_one_that_was_of_use_is_let_stay_once() -> None:
    answers = room_for(15)
    for first in (10, 20, 30):
        answers.add([first, 1, 2, 3])
    assert answers.matches([10, 1], 3) == [Match(2, [2, 3])]
    answers.add([40, 1, 2, 3])
    assert [answer[0] for answer in answers] == [30, 10, 40]
    answers.add([50, 1, 2, 3])
    answers.add([60, 1, 2, 3])
    assert [answer[0] for answer in answers] == [40, 50, 60]


def test_no_more_than_two_stay_for_each_that_is_added() -> None:
    answers = room_for(25)
    for first in (10, 20, 30, 40, 50):
        answers.add([first, 1, 2, 3])
        assert answers.matches([first, 1], 3)
    answers.add([60, 1, 2, 3])
    assert [answer[0] for answer in answers] == [40, 50, 10, 20, 60]


def test_to_drop_an_answer_moves_few_others() -> None:
    class Counting(array):
        """Counts the entries that move up where some are taken out."""

        num_moved = 0

        def __delitem__(self, place: SupportsIndex | slice) -> None:
            super().__delitem__(place)
            Counting.num_moved += len(self)

    answers = room_for(5 * 200)
    answers._begins = Counting("q")
    for first in range(2000):
        answers.add([first, 1, 2, 3])
    assert [answer[0] for answer in answers] == list(range(1800, 2000))
    assert Counting.num_moved <= 8 * 1800


def test_what_is_too_short_or_too_long_is_left_out() -> None:
    answers = room_for(15)
    answers.add([1, 2, 3])
    answers.add(range(15))
    assert len(answers) == 0
    answers.add(range(14))
    assert list(answers) == [list(range(14))]


@given(stream=ANSWERS, num_tokens=st.integers(5, 60))
def test_memory_is_bounded_and_whole_answers_are_kept(stream, num_tokens) -> None:
    answers = room_for(num_tokens)
    for answer in stream:
        answers.add(answer)
        assert answers.num_bytes <= num_tokens * BYTES_PER_TOKEN
    fitting = [answer for answer in stream if 4 <= len(answer) < num_tokens]
    kept = list(answers)
    assert kept == fitting[len(fitting) - len(kept) :]
    if len(kept) < len(fitting):  # nothing was dropped that could have stayed
        total = sum(len(one) + 1 for one in (*kept, fitting[-len(kept) - 1]))
        assert total > num_tokens


@given(stream=ANSWERS, num_tokens=st.integers(5, 60), end=st.lists(st.integers(0, 4), max_size=8))
def test_what_is_found_is_what_is_kept(stream, num_tokens, end) -> None:
    """Nothing of what was dropped, and nothing twice, even where slots are written again."""
    answers = room_for(num_tokens)
    for answer in stream:
        answers.add(answer)
    everything = found_in(list(answers), end)
    found = sorted((match.length, list(match.continuation)) for match in answers.matches(end, 4))
    if len(everything) < ENOUGH_PLACES:
        assert found == everything
    else:  # the most recent of many
        assert len(found) >= ENOUGH_PLACES - 1
        remaining = list(everything)
        for one in found:
            remaining.remove(one)


@given(
    stream=ANSWERS, used=st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=6), max_size=40)
)
def test_use_changes_who_stays_but_never_what_is_found(stream, used) -> None:
    answers = room_for(40)
    for place, answer in enumerate(stream):
        answers.add(answer)
        if place < len(used):
            kept = list(answers)
            for match in answers.matches(used[place], 4):
                assert (match.length, list(match.continuation)) in found_in(kept, used[place])
        assert answers.num_bytes <= 40 * BYTES_PER_TOKEN
    for answer in answers:
        assert answer in stream


def test_the_bytes_are_what_python_allocates() -> None:
    max_bytes = 1 << 20
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        answers = EarlierAnswers(max_bytes)
        for first in range(20_000):
            answers.add([first, first + 1, first + 2, first + 3])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * max_bytes < after - before < 1.01 * max_bytes
    assert len(answers) == max_bytes // BYTES_PER_TOKEN // 5
