"""The real `openai` client against the application."""

from __future__ import annotations

import httpx2
import openai
import pytest
from http_fakes import MODEL
from pydantic import BaseModel

from actors.errors import OverloadedError

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client_for():
    def make(served):
        transport = httpx2.ASGITransport(app=served.app, raise_app_exceptions=False)
        return openai.AsyncOpenAI(
            api_key="none",
            base_url="http://toy/v1",
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=transport),
        )

    return make


async def test_completions(serve, ids, client_for):
    client = client_for(serve(ids("abc")))
    answer = await client.completions.create(model=MODEL, prompt="Hello", logprobs=2)
    assert answer.choices[0].text == "abc"
    assert answer.choices[0].logprobs.tokens[:3] == ["a", "b", "c"]
    assert answer.usage.completion_tokens == 4
    stream = await client.completions.create(model=MODEL, prompt="Hello", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "abc"


async def test_chat(serve, ids, client_for):
    client = client_for(serve(ids("abc")))
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        logprobs=True,
        top_logprobs=2,
        max_completion_tokens=10,
        extra_body={"top_k": 5, "speculation": {"enabled": False}},
    )
    assert answer.choices[0].message.content == "abc"
    assert len(answer.choices[0].logprobs.content) == 4
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "abc"
    assert chunks[-1].usage.completion_tokens == 4


class Person(BaseModel):
    """What the client turns into a strict JSON schema."""

    name: str
    age: int


async def test_structured_output_as_the_client_asks_for_it(serve, ids, client_for):
    served = serve(ids('{"name": "Al", "age": 3}'))
    answer = await client_for(served).chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Person, max_completion_tokens=100
    )
    assert answer.choices[0].message.parsed == Person(name="Al", age=3)
    assert '"age"' in served.backend.requests[0].grammar


async def test_every_generation_parameter_of_the_client(serve, ids, client_for):
    served = serve(ids("abc"))
    client = client_for(served)
    await client.completions.create(
        model=MODEL,
        prompt=[[3, 4], [5, 6]],
        best_of=2,
        n=1,
        echo=True,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        logit_bias={"5": 3},
        logprobs=1,
        max_tokens=4,
        seed=3,
        stop=["x"],
        temperature=0.5,
        top_p=0.5,
        user="me",
        extra_body={"repetition_penalty": 1.1, "min_p": 0.1, "guided_regex": "[abc]+"},
    )
    await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        logit_bias={"5": 3},
        n=2,
        seed=3,
        tool_choice="none",
        parallel_tool_calls=False,
        response_format={"type": "json_object"},
    )
    assert len(served.backend.requests) == 6


async def test_the_streaming_helper_of_the_client(serve, ids, client_for):
    client = client_for(serve(ids("abc")))
    async with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "abc"
    assert final.choices[0].finish_reason == "stop"


async def test_errors(serve, client_for):
    client = client_for(serve())
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt="")
    assert caught.value.param == "prompt"
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="another", prompt="Hello")
    client = client_for(serve(errors={0: OverloadedError("full")}))
    with pytest.raises(openai.RateLimitError):
        await client.completions.create(model=MODEL, prompt="Hello")
    client = client_for(serve([3, 4, 5], errors={1: OverloadedError("full")}))
    stream = await client.completions.create(model=MODEL, prompt="Hello", stream=True)
    with pytest.raises(openai.APIError, match="full"):
        [chunk async for chunk in stream]


async def test_models(serve, client_for):
    client = client_for(serve())
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
