"""Stop strings: earliest end, longest match, held-back text, however the bytes are grouped."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.request_manager.stop_strings import StopMatcher

BYTES = st.binary(max_size=24).map(lambda raw: bytes(97 + byte % 3 for byte in raw))
STOPS = st.lists(BYTES.filter(len), max_size=4)


def first_match(stops, text):
    """Brute force: where the first match to end starts and ends; the longest if several do."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return end - max(lengths), end
    return None


def held(stops, text):
    """Brute force: the longest suffix of `text` that is a proper prefix of a stop string."""
    return max(
        length
        for length in range(len(text) + 1)
        if length == 0
        or any(len(stop) > length and stop.startswith(text[len(text) - length :]) for stop in stops)
    )


def read(matcher, pieces):
    """Where the first match starts in the text that the pieces make, if there is one."""
    state, offset = matcher.START, 0
    for piece in pieces:
        state, start = matcher.find(state, piece)
        if start is not None:
            return offset + start
        offset += len(piece)
    return None


@given(STOPS, BYTES)
def test_first_match_to_end_wins_and_of_those_the_longest(stops, text):
    expected = first_match(stops, text)
    assert read(StopMatcher(stops), [text]) == (expected[0] if expected else None)


@given(STOPS, BYTES, st.data())
def test_grouping_into_tokens_does_not_matter(stops, text, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    edges = [0, *cuts, len(text)]
    pieces = [text[low:high] for low, high in itertools.pairwise(edges)]
    matcher = StopMatcher(stops)
    assert read(matcher, pieces) == read(matcher, [text])


@given(STOPS, BYTES)
def test_what_could_become_a_stop_string_is_held_back_and_nothing_else(stops, text):
    matcher = StopMatcher(stops)
    assert matcher.held_bytes(matcher.skip(matcher.START, text)) == held(stops, text)


@given(STOPS, BYTES)
def test_shown_text_never_runs_into_a_match(stops, text):
    match = first_match(stops, text)
    matcher, state, shown = StopMatcher(stops), StopMatcher.START, 0
    for end, byte in enumerate(text[: match[1] - 1 if match else len(text)], start=1):
        state, _ = matcher.find(state, bytes([byte]))
        before, shown = shown, end - matcher.held_bytes(state)
        assert shown >= before
    assert match is None or shown <= match[0]


@given(STOPS, BYTES, BYTES)
def test_a_match_that_was_skipped_does_not_come_back(stops, early, late):
    matcher = StopMatcher(stops)
    state = matcher.skip(matcher.START, early)
    _, start = matcher.find(state, late)
    ends = range(len(early) + 1, len(early + late) + 1)
    matches = [(end, stop) for end in ends for stop in stops if (early + late)[:end].endswith(stop)]
    if not matches:
        assert start is None
    else:
        end = matches[0][0]
        longest = max(len(stop) for at, stop in matches if at == end)
        assert start == end - longest - len(early)


@pytest.mark.parametrize(
    ("stops", "text", "shown"),
    [
        (["DEFGHIJ"], "DEFGHIJK", ""),
        (["GH", "DEFGHIJ"], "DEFGHIJK", "DEF"),
        (["abac"], "ababac", "ab"),
        (["abc", "bc", "c"], "xabc", "x"),
        (["b", "abc"], "abc", "a"),
        (["aaa"], "aaaa", ""),
        (["🔥"], "hi 🔥 there", "hi "),
        (["👩‍👩‍👧"], "👩‍👩‍👧", ""),
    ],
)
def test_examples(stops, text, shown):
    matcher = StopMatcher(stop.encode() for stop in stops)
    assert read(matcher, [text.encode()]) == len(shown.encode())
    assert read(matcher, [bytes([byte]) for byte in text.encode()]) == len(shown.encode())


def test_without_stop_strings_nothing_is_held_back():
    matcher = StopMatcher()
    assert matcher.find(matcher.START, b"anything") == (matcher.START, None)
    assert matcher.held_bytes(matcher.START) == 0
