"""From bytes to chunks, and from chunks to tokens."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.acceptance import acceptance
from loadtest.answers import AnswerReader, StreamFailure
from loadtest.records import Chunk, Outcome, RequestRecord
from loadtest.sse import MOST_BYTES, EventSplitter, EventTooLongError
from loadtest.tokens import CountSource, count_tokens

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def record(**fields):
    return RequestRecord(0, 0, 0.0, 0.0, **fields)


STREAM = (
    b": hello\r\n\r\ndata: one\n\nevent: x\ndata:two\r\ndata: more\r\n\r\n\n\n"
    b"data: \xc3\xa4\r\rid: 7\rdata: b\n\r\ndata: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_however_the_bytes_are_cut_the_events_are_the_same(places):
    cuts = [0, *sorted(places), len(STREAM)]
    splitter = EventSplitter()
    events = [event for start, end in pairwise(cuts) for event in splitter.feed(STREAM[start:end])]
    assert events == [b"one", b"two\nmore", b"\xc3\xa4", b"b", b"[DONE]"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_complete_with_its_last_byte_whatever_ends_its_lines(end):
    splitter = EventSplitter()
    assert splitter.feed(b"data: one" + end + end) == [b"one"]
    assert splitter.feed(b"data: two" + end + end) == [b"two"]


def test_a_byte_order_mark_spoils_no_event():
    assert EventSplitter().feed(b"\xef\xbb\xbfdata: one\n\n") == [b"one"]


def test_an_event_without_an_end_is_given_up():
    splitter = EventSplitter()
    assert splitter.feed(b"data: " + b"x" * (MOST_BYTES - 6)) == []
    with pytest.raises(EventTooLongError):
        splitter.feed(b"x")


def read(*events, into=None):
    found = into or record()
    reader = AnswerReader(found)
    for place, event in enumerate(events):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        reader.take(data, float(place))
    return found, reader


def chat(delta, reason=None, **more):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason, **more}]}


def test_the_opening_role_is_no_token():
    found, _ = read(
        chat({"role": "assistant", "content": ""}), chat({"content": "Hi"}), chat({}, "stop")
    )
    assert [(chunk.at_s, chunk.text) for chunk in found.chunks] == [(1.0, "Hi")]
    assert found.finish_reason == "stop"


def test_a_token_without_text_is_a_token():
    found, _ = read(chat({"content": "Hi"}, token_ids=[7, 8]), chat({}, "stop", token_ids=[2]))
    assert [chunk.num_ids for chunk in found.chunks] == [2, 1]
    assert found.token_ids == [7, 8, 2]


def test_completions_usage_and_metrics_are_read():
    found, reader = read(
        {"choices": [{"text": "Hi", "finish_reason": "length"}], "usage": None},
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
            "metrics": {"speculative_decoding": {"num_llm_steps": 2}},
        },
        b"[DONE]",
    )
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (9, 4, 8)
    assert found.speculation == {"num_llm_steps": 2}
    assert reader.done


def test_reasoning_and_tool_calls_are_part_of_the_answer():
    call = {"function": {"name": "look", "arguments": '{"a": 1}'}}
    found, _ = read(chat({"reasoning_content": "Hm."}), chat({"tool_calls": [call]}))
    assert [chunk.text for chunk in found.chunks] == ["Hm.", 'look{"a": 1}']


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (b"{not json", Outcome.BAD_STREAM),
        (b'"text"', Outcome.BAD_STREAM),
        (b"\xff", Outcome.BAD_STREAM),
        ({"other": 1}, Outcome.BAD_STREAM),
        ({"choices": [{}]}, Outcome.BAD_STREAM),
        ({"choices": 5}, Outcome.BAD_STREAM),
        ({"choices": [{"text": 5}]}, Outcome.BAD_STREAM),
        ({"choices": [{"text": "a", "token_ids": "abc"}]}, Outcome.BAD_STREAM),
        ({"choices": [], "usage": {"completion_tokens": "12"}}, Outcome.BAD_STREAM),
        ({"choices": [], "usage": {"completion_tokens": -1}}, Outcome.BAD_STREAM),
        ({"choices": [], "usage": {"prompt_tokens": 1e400}}, Outcome.BAD_STREAM),
        (b"[" * 100_000, Outcome.BAD_STREAM),
        ({"error": {"message": "out of memory"}}, Outcome.ERROR_EVENT),
        ({"error": "out of memory"}, Outcome.ERROR_EVENT),
    ],
)
def test_events_of_another_shape_are_failures(event, outcome):
    with pytest.raises(StreamFailure) as raised:
        read(event)
    assert raised.value.outcome is outcome
    if outcome is Outcome.ERROR_EVENT:
        assert raised.value.detail == "out of memory"


@pytest.mark.parametrize(
    "metrics",
    [
        5,
        [],
        {"speculative_decoding": [1]},
        {"speculative_decoding": {"num_llm_steps": "many"}},
        {"speculative_decoding": {"acceptance_histogram": [1, None]}},
        {"speculative_decoding": {"acceptance_histogram": {"1": 2}}},
    ],
)
def test_an_account_of_another_shape_is_none(metrics):
    found, _ = read(chat({"content": "Hi"}), {"choices": [], "metrics": metrics})
    assert found.speculation == {} and acceptance([found]) is None


def test_what_a_server_says_is_shown_as_one_printable_line():
    with pytest.raises(StreamFailure) as raised:
        read({"error": {"message": "out\nof \x1b[31mmemory \ud800" + "!" * 500}})
    assert len(raised.value.detail) == 200
    assert raised.value.detail.startswith("out of \ufffd[31mmemory \ufffd!")
    raised.value.detail.encode()


def test_tokens_told_while_reading_count_for_hanging_up():
    _, reader = read(chat({"content": "Hi"}) | {"usage": {"completion_tokens": 7}})
    assert reader.num_seen == 7


def test_the_end_tells_whole_answers_from_others():
    for events, outcome in (
        ([chat({"content": "Hi"})], Outcome.TRUNCATED),
        ([chat({}, "stop")], Outcome.EMPTY),
    ):
        _, reader = read(*events)
        with pytest.raises(StreamFailure) as raised:
            reader.close()
        assert raised.value.outcome is outcome
    read(chat({"content": "Hi"}, "stop"))[1].close()


def chunks(*texts, ids=None, usage=None):
    return [
        Chunk(float(place), text, ids and ids[place], usage and usage[place])
        for place, text in enumerate(texts)
    ]


class Ruler:
    """Every word is a token; its spaces belong to it."""

    def ends(self, text):
        return [place for place in range(1, len(text) + 1) if text[place : place + 1] in ("", " ")]


def test_token_ids_are_trusted_most():
    found = count_tokens(
        record(chunks=chunks("a", "b", ids=[3, 1], usage=[9, 9]), completion_tokens=4), Ruler()
    )
    assert (found.source, found.per_chunk, found.differs_by) == (CountSource.TOKEN_IDS, (3, 1), 0)


def test_a_wrong_usage_is_noticed():
    found = count_tokens(record(chunks=chunks("a", "b", ids=[3, 1]), completion_tokens=7))
    assert found.differs_by == 3
    assert found.total == 4


def test_usage_in_every_chunk_is_a_running_total():
    found = count_tokens(record(chunks=chunks("a", "b", "c", usage=[1, 4, 6])))
    assert (found.source, found.per_chunk) == (CountSource.USAGE, (1, 3, 2))


def test_the_tokenizer_puts_a_token_where_its_last_character_came():
    found = count_tokens(
        record(chunks=chunks("one tw", "o three", " four"), completion_tokens=5), Ruler()
    )
    assert found.source is CountSource.TOKENIZER
    # "two" is ended by the second chunk; the fifth token of the usage had no text.
    assert found.per_chunk == (1, 2, 2)


def test_a_total_is_shared_out_by_characters():
    found = count_tokens(record(chunks=chunks("aaaa", "bb", "cc"), completion_tokens=5))
    assert found.source is CountSource.SHARED
    assert sum(found.per_chunk) == 5 and found.per_chunk[0] in (2, 3)


def test_without_anything_a_chunk_is_counted_and_said_to_be_a_guess():
    found = count_tokens(record(chunks=chunks("aaaa", "bb")))
    assert (found.source, found.per_chunk) == (CountSource.CHUNKS, (1, 1))


def test_a_short_first_text_is_a_token_too():
    """Else the time to first token would be the second chunk's."""
    texts = ("I", " think", " therefore")
    assert count_tokens(record(chunks=chunks(*texts), completion_tokens=3)).per_chunk == (1, 1, 1)
    assert count_tokens(record(chunks=chunks(*texts), completion_tokens=2)).per_chunk == (1, 0, 1)
    late = count_tokens(record(chunks=chunks(*texts, usage=[0, 1, 3])))
    assert (late.source, late.per_chunk) == (CountSource.USAGE, (1, 0, 2))
    halves = count_tokens(record(chunks=chunks("o", "ne two")), Ruler())
    assert (halves.source, halves.per_chunk) == (CountSource.TOKENIZER, (1, 1))


def test_a_usage_of_nothing_for_a_text_is_not_believed():
    for found in (
        count_tokens(record(chunks=chunks("a", "b"), completion_tokens=0)),
        count_tokens(record(chunks=chunks("a", "b", usage=[0, 0]), completion_tokens=0)),
    ):
        assert (found.source, found.per_chunk) == (CountSource.CHUNKS, (1, 1))


@given(st.lists(st.text(max_size=6), min_size=1, max_size=20), st.integers(1, 60))
def test_shared_counts_add_up(texts, total):
    found = count_tokens(record(chunks=chunks(*texts), completion_tokens=total))
    assert found.total == total
    assert all(count >= 0 for count in found.per_chunk)
