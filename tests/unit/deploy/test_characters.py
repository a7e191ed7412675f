"""Characters split over tokens, over HTTP."""

from __future__ import annotations

import pytest
from http_fakes import finish_of, joined_text

TEXT = "hi \U0001f525\U0001f469\u200d\U0001f469\u200d\U0001f467 \u00e9 \u0e44\u0e17\u0e22 \u95eb"
REPLACEMENT = "\ufffd"
THAI = "\u0e44".encode()


@pytest.mark.parametrize("size", range(1, 6))
@pytest.mark.parametrize("stream", [False, True])
async def test_every_grouping_gives_the_text(serve, byte_ids, size, stream):
    served = serve(byte_ids(TEXT.encode()), blocks=(size,))
    body = {"prompt": "Hello", "max_tokens": 100}
    if not stream:
        assert (await served.complete(**body))["choices"][0]["text"] == TEXT
        return
    chunks = await served.stream_complete(**body)
    assert joined_text(chunks) == TEXT
    assert not any(REPLACEMENT in joined_text([chunk]) for chunk in chunks)


@pytest.mark.parametrize("max_tokens", range(1, 12))
async def test_a_limit_inside_a_character_leaves_one_replacement(serve, byte_ids, max_tokens):
    data = TEXT.encode()
    served = serve(byte_ids(data), blocks=(3,))
    body = {"prompt": "Hello", "max_tokens": max_tokens}
    text = data[:max_tokens].decode(errors="replace")
    assert (await served.complete(**body))["choices"][0]["text"] == text
    chunks = await served.stream_complete(**body)
    assert (joined_text(chunks), finish_of(chunks)) == (text, "length")
    assert not any(REPLACEMENT in joined_text([chunk]) for chunk in chunks[:-1])


async def test_an_emoji_as_stop_string(serve, byte_ids):
    served = serve(byte_ids(TEXT.encode()), blocks=(2,))
    body = {"prompt": "Hello", "max_tokens": 100, "stop": "\U0001f525"}
    assert (await served.complete(**body))["choices"][0]["text"] == "hi "
    assert joined_text(await served.stream_complete(**body)) == "hi "


async def test_a_prompt_that_ends_inside_a_character(serve, byte_ids):
    served = serve(byte_ids(THAI[2:] + b"!"))
    body = {"prompt": byte_ids(b"Hello " + THAI[:2]), "max_tokens": 100}
    assert (await served.complete(**body))["choices"][0]["text"] == "\u0e44!"
    assert joined_text(await served.stream_complete(**body)) == "\u0e44!"
    echoed = (await served.complete(**body, echo=True))["choices"][0]["text"]
    assert echoed == "Hello \u0e44!"


async def test_logprobs_of_split_characters_carry_bytes(serve, byte_ids):
    served = serve(byte_ids("\U0001f525".encode()))
    wanted = [[byte] for byte in "\U0001f525".encode()]
    answer = await served.complete(prompt="Hello", max_tokens=4, logprobs=0)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["bytes"] == wanted
    assert logprobs["tokens"][0] == "bytes:\\xf0"
    assert logprobs["text_offset"] == [0, 0, 0, 0]
    chat = await served.chat(
        messages=[{"role": "user", "content": "Hello"}], max_tokens=4, logprobs=True
    )
    content = chat["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == wanted


async def test_line_separators_do_not_break_a_stream(serve, byte_ids):
    text = "a\u2028b\u0085c\r\n\nd"
    served = serve(byte_ids(text.encode()))
    assert joined_text(await served.stream_complete(prompt="Hello", max_tokens=50)) == text
