"""What is refused: always 400 in one shape, with the field at fault, and nothing generated."""

from __future__ import annotations

import asyncio

import pytest
from http_fakes import assert_error

MESSAGES = [{"role": "user", "content": "Hello"}]


SCHEMA_FIELD = "response_format.json_schema.schema"


def json_schema(schema: object) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


def called(arguments: str) -> dict:
    """A turn in which the model called a tool."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


BOTH = [
    *[({"temperature": value}, "temperature") for value in (-1, 1e9, "hot", True, [], {})],
    *[({"top_p": value}, "top_p") for value in (0, 1.1, -1, "1", False)],
    *[({"top_k": value}, "top_k") for value in (-2, 1e12, 10**12, 10**400, 1.5, "5", True)],
    *[({"min_p": value}, "min_p") for value in (-0.1, 1.5)],
    *[({"seed": value}, "seed") for value in (1 << 64, -(1 << 63) - 1, 1.5, "x", True)],
    *[({"n": value}, "n") for value in (0, -1, 129, 10**9, "2", True, 1.0)],
    *[({"frequency_penalty": value}, "frequency_penalty") for value in (1e9, -2.1, "0.5", False)],
    *[({"presence_penalty": value}, "presence_penalty") for value in (1e9, "0", 2.01)],
    *[({"repetition_penalty": value}, "repetition_penalty") for value in (0, -1, 101, "1.1")],
    *[
        ({"logit_bias": value}, "logit_bias")
        for value in ({"AI": -100}, {"999999999": 5}, {"-1": 1}, [])
    ],
    *[
        ({"logit_bias": value}, "logit_bias")
        for value in ({"5": 1, "05": 2}, {"\u0665": 1}, {"": 1})
    ],
    ({"logit_bias": {"9" * 1000: 1}}, "logit_bias"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
    *[({"logit_bias": {"5": value}}, "logit_bias.5") for value in ("1", 101, -101)],
    ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
    *[
        ({"truncate_prompt_tokens": value}, "truncate_prompt_tokens")
        for value in (0, -2, 1.5, "5", 10**30)
    ],
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": "é" * 600}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 2000}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": "\ud800"}, "stop"),
    ({"stop_token_ids": [10**9]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [1] * 513}, "stop_token_ids"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**6}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 4.0}, "max_tokens"),
    ({"max_tokens": "4"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"user": 5}, "user"),
    ({"return_token_ids": "true"}, "return_token_ids"),
    ({"speculation": True}, "speculation"),
    ({"speculation": {"enabled": "no"}}, "speculation.enabled"),
    *[({"speculation": {"max_nodes": value}}, "speculation.max_nodes") for value in (-1, 10**9)],
    ({"speculation": {"drafters": ["crystal_ball"]}}, "speculation.drafters"),
    ({"speculation": {"verification": "typical"}}, "speculation.verification"),
    ({"speculation": {"depth": 3}}, "speculation.depth"),
    *[({"response_format": value}, "response_format") for value in ("json_object", [], 5)],
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, SCHEMA_FIELD),
    *[
        ({"response_format": json_schema(schema)}, SCHEMA_FIELD)
        for schema in ({"type": "text"}, {"not": {}}, {"enum": ["x" * 40000]}, [], "x")
    ],
    ({"guided_json": {"type": "text"}}, "guided_json"),
    ({"guided_json": "{}"}, "guided_json"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_regex": "a" * 5000}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a"] * 1025}, "guided_choice"),
    ({"guided_choice": ["a", 1]}, "guided_choice[1]"),
    ({"guided_grammar": "root ::= x"}, "guided_grammar"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar"),
    ({"best_of": 129}, "best_of"),
    ({"best_of": 0}, "best_of"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
    ),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"no_such_field": 1}, "no_such_field"),
    ({"no_such_field": None}, "no_such_field"),
]
COMPLETION = [
    *[({"prompt": value}, "prompt") for value in ("", [""], [], [[]], None, 5, {}, True)],
    *[
        ({"prompt": value}, "prompt")
        for value in ([10**9], [-1], [[1], [10**30]], "\ud800", ["a", ""])
    ],
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [1.0]}, "prompt[0]"),
    ({"prompt": [[1], [None]]}, "prompt[1][0]"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"prompt": ["a"] * 65, "n": 2}, "n"),
    ({"prompt": ["a"] * 65, "best_of": 2}, "best_of"),
    ({"suffix": "the end"}, "suffix"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": "yes"}, "echo"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"messages": MESSAGES}, "messages"),
]
CHAT = [
    *[({"messages": value}, "messages") for value in ([], None, "Hello", {}, 5)],
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [*MESSAGES, {"role": "user", "content": None}]}, "messages[1].content"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "developer", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
    ),
    ({"messages": [{"role": "user", "content": "\udfff"}]}, "messages"),
    (
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
        "messages[0].tool_calls[0].id",
    ),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": []}]},
        "messages[0].tool_calls",
    ),
    ({"messages": [called("[1]")]}, "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [called("{")]}, "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [called("[" * 9999)]}, "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [called("{}")]}, "messages"),
    ({"messages": [{"role": "tool"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 129}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    (
        {"add_generation_prompt": True, "continue_final_message": True},
        "add_generation_prompt",
    ),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 10**6}, "max_completion_tokens"),
    ({"max_tokens": 4, "max_completion_tokens": 4}, "max_tokens"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"prompt": "Hello"}, "prompt"),
]
CASES = [
    *[("completions", *case) for case in BOTH + COMPLETION],
    *[("chat/completions", *case) for case in BOTH + CHAT],
]


def body_for(endpoint: str, fields: dict) -> dict:
    default = {"prompt": "Hello"} if endpoint == "completions" else {"messages": MESSAGES}
    return {**default, **fields}


@pytest.mark.parametrize(("endpoint", "fields", "param"), CASES)
async def test_it_is_refused_by_name(serve, endpoint, fields, param):
    served = serve()
    response = await served.post(f"/v1/{endpoint}", body_for(endpoint, fields))
    assert_error(response, 400, param)
    assert served.backend.requests == []


@pytest.mark.parametrize("endpoint", ["completions", "chat/completions"])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "frequency_penalty"])
@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_what_is_no_number_is_refused_by_name(serve, endpoint, name, literal):
    served = serve()
    default = (
        '"prompt": "Hello"'
        if endpoint == "completions"
        else ('"messages": [{"role": "user", "content": "Hello"}]')
    )
    response = await served.post_raw(f"/v1/{endpoint}", f'{{{default}, "{name}": {literal}}}')
    assert_error(response, 400, name)
    assert served.backend.requests == []


@pytest.mark.parametrize(
    ("prompt", "told"),
    [([5], "1 token of prompt leaves 199 of"), ([5, 6], "2 tokens of prompt leave 198 of")],
)
async def test_an_output_too_long_is_told_what_room_there_is(serve, prompt, told):
    response = await serve().post("/v1/completions", {"prompt": prompt, "max_tokens": 200})
    error = assert_error(response, 400, "max_tokens")
    assert told in error["message"]
    assert error["code"] == "context_length_exceeded"


async def test_the_first_mistake_in_the_body_is_named(serve):
    served = serve()
    response = await served.post("/v1/completions", {"top_p": "x", "prompt": 5, "temperature": "x"})
    assert_error(response, 400, "top_p")


@pytest.mark.parametrize(
    "fields",
    [{"temperature": value} for value in (-0.0, 0, 1e-9, 1e-4, 1, 2.0, None)]
    + [{"top_p": value} for value in (1e-4, 1, None)]
    + [{"top_k": value} for value in (-1, 0, 1, None)]
    + [{"seed": value} for value in (-1, 0, (1 << 64) - 1, None)]
    + [
        {"n": None, "best_of": 1},
        {"n": 2, "best_of": 2},
        {"max_tokens": None, "stop": None, "logprobs": None, "user": "me"},
        {"stream": None, "stream_options": None, "speculation": None},
        {"stop": [], "stop_token_ids": [], "logit_bias": {}},
        {"frequency_penalty": 0.0, "presence_penalty": 0, "repetition_penalty": 1.0},
        {"truncate_prompt_tokens": -1, "include_stop_str_in_output": False},
        {"response_format": {"type": "text"}, "skip_special_tokens": True},
        {"response_format": None, "guided_json": None, "structured_outputs": None},
        {"speculation": {}},
        {"speculation": {"max_nodes": 0}},
        {"speculation": {"enabled": None, "max_nodes": 4, "drafters": ["ssm"]}},
    ],
)
@pytest.mark.parametrize("endpoint", ["completions", "chat/completions"])
async def test_what_changes_nothing_is_accepted(serve, endpoint, fields):
    served = serve()
    response = await served.post(f"/v1/{endpoint}", body_for(endpoint, fields))
    assert response.status_code == 200, response.text
    assert len(served.backend.requests) == (fields.get("n") or 1)


async def test_an_answer_can_be_sent_back_as_it_came(serve, ids):
    served = serve(ids("hi"))
    first = await served.chat(messages=MESSAGES)
    answer = first["choices"][0]["message"] | {
        "tool_calls": None,
        "function_call": None,
        "annotations": [],
        "audio": None,
    }
    await served.chat(messages=[*MESSAGES, answer, *MESSAGES])


async def test_a_bad_number_leaves_a_neighbours_stream_alone(serve, ids):
    served = serve(ids("a stream of its own"), hold_after=3)
    alone = await serve(ids("a stream of its own")).stream_complete(prompt="Hello", max_tokens=9)
    neighbour = asyncio.create_task(served.stream_complete(prompt="Hello", max_tokens=9))
    await served.backend.held.wait()
    for fields, param in BOTH:
        response = await served.post("/v1/completions", {"prompt": "x", **fields})
        assert_error(response, 400, param)
    served.backend.released.set()
    chunks = await neighbour
    for one, other in zip(chunks, alone, strict=True):
        assert one["choices"] == other["choices"]


@pytest.mark.parametrize(
    ("fields", "param", "meant"),
    [
        (
            {"messages": [{"role": "wizard", "content": "x"}]},
            "messages[0].role",
            ["system", "developer", "user", "assistant", "tool"],
        ),
        (
            {"messages": MESSAGES, "response_format": {"type": "xml"}},
            "response_format.type",
            ["text", "json_object", "json_schema"],
        ),
    ],
)
async def test_a_wrong_kind_is_told_of_all_that_there_are(serve, fields, param, meant):
    answer = await serve().post("/v1/chat/completions", fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    for kind in meant:
        assert f"'{kind}'" in error["message"]
