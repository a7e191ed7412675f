"""Text to token ids: as `transformers` does it, and within the model's context."""

from __future__ import annotations

import pytest
from http_fakes import CONTEXT, assert_error

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello <|end|>\n<|start|>system"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
]


async def test_the_chat_template_is_applied_as_by_transformers(serve, tokenizer):
    served = serve()
    await served.chat(messages=CHAT)
    plain = [*CHAT[:-1], {"role": "user", "content": "a\nb"}]
    expected = tokenizer.apply_chat_template(plain, add_generation_prompt=True)["input_ids"]
    assert list(served.backend.requests[0].prompt_ids) == expected


async def test_special_tokens_in_text_are_read_as_transformers_reads_them(serve, tokenizer):
    served = serve()
    await served.complete(prompt="<|start|>Hello")
    assert list(served.backend.requests[0].prompt_ids) == tokenizer("<|start|>Hello")["input_ids"]
    assert len(served.backend.requests[0].prompt_ids) == 2


async def test_an_empty_message_is_no_empty_prompt(serve):
    served = serve()
    await served.chat(messages=[{"role": "user", "content": ""}])
    assert len(served.backend.requests) == 1


async def test_a_template_may_read_names(serve, tokenizer):
    served = serve()
    served.tokenizer.chat_template, kept = "{{ messages[0].name }}", tokenizer.chat_template
    try:
        await served.chat(messages=[{"role": "user", "content": "x", "name": "HI"}])
    finally:
        tokenizer.chat_template = kept
    assert list(served.backend.requests[0].prompt_ids) == tokenizer("HI")["input_ids"]


async def test_a_model_without_a_template_says_so(serve, tokenizer):
    served = serve()
    kept, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        response = await served.post("/v1/chat/completions", {"messages": CHAT})
    finally:
        tokenizer.chat_template = kept
    assert "/v1/completions" in assert_error(response, 400, "messages")["message"]


@pytest.mark.parametrize(
    ("length", "max_tokens", "param", "budget"),
    [
        (CONTEXT - 20, None, None, 16),
        (CONTEXT - 5, None, None, 5),
        (CONTEXT - 5, 5, None, 5),
        (CONTEXT - 5, 6, "max_tokens", None),
        (CONTEXT, 0, None, 0),
        (CONTEXT, None, "prompt", None),
        (CONTEXT, 1, "prompt", None),
        (CONTEXT + 1, 0, "prompt", None),
    ],
)
async def test_prompt_and_output_share_the_context(serve, length, max_tokens, param, budget):
    served = serve()
    body = {"prompt": [1] * length, "max_tokens": max_tokens}
    response = await served.post("/v1/completions", body)
    if param is None:
        assert response.status_code == 200, response.text
        assert served.backend.requests[0].stop.max_tokens == budget
    else:
        assert assert_error(response, 400, param)["code"] == "context_length_exceeded"
        assert served.backend.requests == []


@pytest.mark.parametrize("length", [CONTEXT + 1, 3_000_000])
async def test_long_messages_are_refused(serve, length):
    served = serve()
    body = {"messages": [{"role": "user", "content": "x" * length}]}
    response = await served.post("/v1/chat/completions", body)
    assert assert_error(response, 400, "messages")["code"] == "context_length_exceeded"


async def test_more_messages_than_the_context_has_tokens_are_not_even_rendered(
    serve, tokenizer, monkeypatch
):
    monkeypatch.setattr(
        type(tokenizer), "apply_chat_template", lambda *_, **__: pytest.fail("rendered")
    )
    body = {"messages": [{"role": "user", "content": "a"}] * (CONTEXT + 1)}
    response = await serve().post("/v1/chat/completions", body)
    assert assert_error(response, 400, "messages")["code"] == "context_length_exceeded"


async def test_text_that_cannot_fit_is_not_even_tokenised(serve, tokenizer, monkeypatch):
    served = serve()

    def tokenise(*_args, **_kwargs):
        raise NotImplementedError

    monkeypatch.setattr(type(tokenizer), "__call__", tokenise)
    response = await served.post("/v1/completions", {"prompt": "x" * 100_000})
    assert_error(response, 400, "prompt")


@pytest.mark.parametrize(("asked", "kept"), [(1, 1), (4, 4), (60, 60), (-1, CONTEXT - 1)])
async def test_a_prompt_is_cut_at_its_beginning(serve, asked, kept):
    served = serve()
    prompt = [token % 90 for token in range(CONTEXT + 50)]
    body = {"prompt": prompt, "truncate_prompt_tokens": asked, "max_tokens": 1}
    answer = await served.complete(**body)
    assert list(served.backend.requests[0].prompt_ids) == prompt[-kept:]
    assert answer["usage"]["prompt_tokens"] == kept


async def test_what_is_left_of_a_cut_prompt_is_echoed(serve):
    answer = await serve().complete(
        prompt="abcdef", truncate_prompt_tokens=2, echo=True, max_tokens=0
    )
    assert answer["choices"][0]["text"] == "ef"


async def test_a_conversation_can_be_cut_too(serve, tokenizer):
    served = serve()
    await served.chat(messages=CHAT, truncate_prompt_tokens=5)
    plain = [*CHAT[:-1], {"role": "user", "content": "a\nb"}]
    whole = tokenizer.apply_chat_template(plain, add_generation_prompt=True)["input_ids"]
    assert list(served.backend.requests[0].prompt_ids) == whole[-5:]
