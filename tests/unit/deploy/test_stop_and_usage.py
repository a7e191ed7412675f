"""Stop strings, limits and usage over HTTP: equal to one token at a time, however grouped."""

from __future__ import annotations

from itertools import pairwise

import pytest
from http_fakes import choices_of, finish_of, flat, joined_text

ALL_SPLITS = [
    tuple(end - start for start, end in pairwise((0, *cuts, 6)))
    for cuts in (
        tuple(place for place in range(1, 6) if mask >> (place - 1) & 1) for mask in range(32)
    )
]


def shown(chunks):
    return joined_text(chunks), finish_of(chunks), chunks[-1]["usage"]


@pytest.mark.parametrize("stop_at", range(6))
async def test_a_stop_string_inside_a_block_ends_the_output_there(serve, ids, stop_at):
    letters = list("abcdef")
    letters[stop_at] = "STOP"
    script = [token for letter in letters for token in ids(letter)]
    assert len(script) == 6
    for max_tokens in range(1, 7):
        stopped = stop_at < max_tokens
        count = stop_at + 1 if stopped else max_tokens
        text = "".join(letters[:stop_at] if stopped else letters[:max_tokens])
        for blocks in ALL_SPLITS:
            body = {"prompt": "Hello", "max_tokens": max_tokens, "stop": "STOP"}
            served = serve(script, blocks=blocks)
            answer = await served.complete(**body)
            choice = answer["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == (
                text,
                "stop" if stopped else "length",
            )
            assert answer["usage"]["completion_tokens"] == count
            chunks = await served.stream_complete(**body, stream_options={"include_usage": True})
            assert shown(chunks) == (text, choice["finish_reason"], answer["usage"])


@pytest.mark.parametrize("blocks", [(1,), (2,), (3, 1), (20,)])
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 20])
async def test_usage_counts_what_was_delivered(serve, ids, blocks, max_tokens):
    served = serve(ids("a quick test of usage"), blocks=blocks)
    body = {
        "prompt": "Hello",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "logprobs": 1,
        "return_token_ids": True,
    }
    answer = await served.complete(**body)
    choice = answer["choices"][0]
    assert answer["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": max_tokens,
        "total_tokens": max_tokens + 1,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert len(choice["token_ids"]) == len(choice["logprobs"]["tokens"]) == max_tokens
    chunks = await served.stream_complete(**body, stream_options={"include_usage": True})
    assert chunks[-1]["usage"] == answer["usage"]
    assert chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    streamed = choices_of(chunks)
    assert flat(part["token_ids"] for part in streamed) == choice["token_ids"]
    for name, values in choice["logprobs"].items():
        assert flat(part["logprobs"][name] for part in streamed) == values


async def test_cached_tokens_count_each_prompt_once(serve, ids):
    """The first choice of a prompt fills the cache for the others."""
    served = serve(ids("abc"))
    cached = iter([5, 12, 12, 0, 8, 8])
    served.backend.num_cached = lambda request: next(cached)
    body = {"prompt": ["Hello there", "Hello"], "n": 3, "max_tokens": 2}
    answer = await served.complete(**body)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    cached = iter([16, 12, 12, 9, 8, 8])
    chunks = await served.stream_complete(**body, stream_options={"include_usage": True})
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 20}


HELD_BACK = {
    "a stop over five tokens": (["DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], "", "stop"),
    "a stop that never comes": (["DEF", "G", "X", "Y"], ["DEFGHIJ"], "DEFGXY", "stop"),
    "the earliest match": (["DEF", "G", "HI", "J", "K"], ["GH", "DEFGHIJ"], "DEF", "stop"),
    "a stop that begins inside itself": (list("ababac"), ["abac"], "ab", "stop"),
    "held back at the limit": (
        ["a"] * 6 + ["DEF", "G", "HI"],
        ["DEFGHIJ"],
        "a" * 6 + "DEF",
        "length",
    ),
}


@pytest.mark.parametrize("case", HELD_BACK.values(), ids=HELD_BACK.keys())
@pytest.mark.parametrize("blocks", [(1,), (2,), (1, 2), (5,)])
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_no_part_of_a_stop_string_is_streamed(serve, ids, case, blocks, endpoint):
    pieces, stop, text, reason = case
    served = serve([token for piece in pieces for token in ids(piece)], blocks=blocks)
    body = {"stop": stop, "max_tokens": 7}
    if endpoint == "chat":
        body["messages"] = [{"role": "user", "content": "Hello"}]
        answer = await served.chat(**body)
        chunks = await served.stream_chat(**body)
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert answer["choices"][0]["message"]["content"] == text
        chunks = chunks[1:]
    else:
        body["prompt"] = "Hello"
        answer = await served.complete(**body)
        chunks = await served.stream_complete(**body)
        assert answer["choices"][0]["text"] == text
    assert answer["choices"][0]["finish_reason"] == reason
    assert (joined_text(chunks), finish_of(chunks)) == (text, reason)
    for chunk in chunks[:-1]:
        assert joined_text([chunk])


async def test_a_stop_token_counts_and_is_not_shown(serve, ids):
    served = serve(ids("abc"))
    body = {"prompt": "Hello", "stop_token_ids": ids("b")}
    answer = await served.complete(**body)
    assert answer["choices"][0]["text"] == "a"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 2
    chunks = await served.stream_complete(**body)
    assert (joined_text(chunks), finish_of(chunks)) == ("a", "stop")


async def test_defaults_of_both_endpoints(serve):
    served = serve()
    await served.complete(prompt="Hello")
    await served.chat(messages=[{"role": "user", "content": "Hello"}])
    completion, chat = served.backend.requests
    assert completion.stop.max_tokens == 16
    assert chat.stop.max_tokens == served.backend.description.max_context_tokens - len(
        chat.prompt_ids
    )
    for request in (completion, chat):
        assert request.sampling.temperature == 1.0
        assert request.sampling.seed == 7
        assert request.num_logprobs is None
        assert not request.internal


@pytest.mark.parametrize("blocks", [(1,), (2,), (5,)])
async def test_a_stop_can_be_shown(serve, ids, blocks):
    served = serve([token for piece in ("a", "DEF", "G", "HI", "z") for token in ids(piece)])
    served.backend.blocks = blocks
    for stop, text in (
        ({"stop": "FGH"}, "aDEFGH"),
        ({"stop_token_ids": ids("G")}, "aDEFG"),
        ({}, "aDEFGHIz"),
    ):
        body = {"prompt": "Hello", "include_stop_str_in_output": True, **stop}
        answer = await served.complete(**body)
        assert answer["choices"][0]["text"] == text
        assert joined_text(await served.stream_complete(**body)) == text


async def test_every_chunk_can_carry_the_usage_so_far(serve, ids):
    served = serve(ids("abc"), blocks=(1,))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await served.stream_complete(prompt="Hello", stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == [1, 2, 3, 4, 4]
    assert chunks[-1]["choices"] == []
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {1}
    chat = await served.stream_chat(
        messages=[{"role": "user", "content": "Hello"}], stream_options=options
    )
    assert chat[0]["usage"]["completion_tokens"] == 0
