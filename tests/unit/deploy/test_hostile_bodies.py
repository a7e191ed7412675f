"""Bodies that are no JSON, hold numbers of thousands of digits, or are deep or long without end."""

from __future__ import annotations

import pytest
from http_fakes import assert_error
from test_bad_requests import called, json_schema

LONG = "9" * 5000


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (f'{{"prompt": "a", "seed": {LONG}}}', "seed"),
        (f'{{"prompt": "a", "seed": -{LONG}}}', "seed"),
        (f'{{"prompt": [1, 2, {LONG}]}}', "prompt[2]"),
        (
            f'{{"a": [{{}}, [1]], "guided_json": {{"b": [0, {{"c": {LONG}}}]}}}}',
            "guided_json.b[1].c",
        ),
        (LONG, None),
    ],
)
async def test_a_number_of_thousands_of_digits_is_told_of(serve, body, param):
    error = assert_error(await serve().post_raw("/v1/completions", body), 400, param)
    assert "more than 4300 digits" in error["message"]
    assert error["message"].startswith(param or "the body")


async def test_numbers_of_thousands_of_digits_in_arguments_are_told_of(serve):
    turn = called(f'{{"a": {LONG}}}')
    error = assert_error(
        await serve().post("/v1/chat/completions", {"messages": [turn]}),
        400,
        "messages[0].tool_calls[0].function.arguments",
    )
    assert "more than 4300 digits" in error["message"]


@pytest.mark.parametrize("end", ["", "]", "[" * 100_000])
async def test_a_long_number_in_what_is_no_json(serve, end):
    answer = await serve().post_raw("/v1/completions", f'{{"seed": {LONG}, {end}')
    assert assert_error(answer, 400)["code"] == "invalid_json"


@pytest.mark.parametrize("body", [b'{"prompt": "\xff"}', "{}".encode("utf-16"), b"\xc3"])
async def test_what_is_no_text_is_told_of_in_plain_words(serve, body):
    error = assert_error(await serve().post_raw("/v1/completions", body), 400)
    assert error["message"] == "the body is not text in UTF-8"
    assert error["code"] == "invalid_json"


def nested(depth: int, key: str = "properties") -> dict:
    schema: dict = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", key: {"a": schema}}
    return schema


HOSTILE = [
    {"guided_json": nested(300)},
    {"guided_json": nested(20) | {"properties": {"x" * 3000: nested(20, "propertis")}}},
    {"response_format": json_schema(nested(300))},
    {"structured_outputs": {"json": nested(150)}},
    {"guided_json": {"type": "string", "pattern": "(" * 3000}},
    {"guided_regex": "(" * 4000},
    {"x" * 100_000: 1},
    {"model": "x" * 100_000},
    {"logit_bias": {"x" * 100_000: "y"}},
    {"speculation": {"drafters": ["x" * 100_000]}},
    {"speculation": {"x" * 100_000: 1}},
    {"guided_json": {"x" * 100_000: 1}},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=range(len(HOSTILE)))
async def test_errors_do_not_send_everything_back(serve, fields):
    answer = await serve().post("/v1/completions", {"prompt": "Hello", **fields})
    error = answer.json()["error"]
    assert answer.status_code in (400, 404)
    assert error["param"].partition(".")[0][:90] == next(iter(fields))[:90]
    assert len(error["message"]) <= 500
    assert len(error["param"]) <= 200


@pytest.mark.parametrize("depth", [100, 300, 450])
async def test_what_is_nested_too_deeply_is_told_as_that(serve, depth):
    answer = await serve().post("/v1/completions", {"prompt": "a", "guided_json": nested(depth)})
    error = assert_error(answer, 400, "guided_json")
    assert error["message"] == "guided_json is nested too deeply"


async def test_an_address_is_not_sent_back_whole(serve):
    answer = await serve().http.get("/" + "x" * 10_000)
    assert len(assert_error(answer, 404)["message"]) <= 500
