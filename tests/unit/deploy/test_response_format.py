"""How a request says what its output must look like."""

from __future__ import annotations

import pytest

from actors.grammar import grammar_of_choice, grammar_of_json, grammar_of_regex, grammar_of_schema

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON_SCHEMA = {"name": "n", "schema": SCHEMA, "strict": True, "description": "d"}
FORMS = [
    ({}, ""),
    ({"response_format": {"type": "text"}}, ""),
    ({"response_format": {"type": "json_object"}}, grammar_of_json("")),
    (
        {"response_format": {"type": "json_schema", "json_schema": JSON_SCHEMA}},
        grammar_of_schema(SCHEMA, ""),
    ),
    ({"guided_json": SCHEMA}, grammar_of_schema(SCHEMA, "")),
    ({"guided_regex": "[ab]+"}, grammar_of_regex("[ab]+", "")),
    ({"guided_choice": ["yes", "no"]}, grammar_of_choice(["yes", "no"], "")),
    ({"structured_outputs": {"json": SCHEMA}}, grammar_of_schema(SCHEMA, "")),
    ({"structured_outputs": {"json_object": True}}, grammar_of_json("")),
    ({"structured_outputs": {"regex": "[ab]+"}}, grammar_of_regex("[ab]+", "")),
    ({"structured_outputs": {"choice": ["yes"]}}, grammar_of_choice(["yes"], "")),
]


@pytest.mark.parametrize(("fields", "grammar"), FORMS)
async def test_each_way_to_ask_becomes_the_grammar_of_all_outputs(serve, fields, grammar):
    served = serve()
    await served.complete(prompt=["Hello", "HI"], n=2, **fields)
    await served.chat(messages=[{"role": "user", "content": "Hello"}], **fields)
    assert [request.grammar for request in served.backend.requests] == [grammar] * 5
    assert len({request.grammar_param for request in served.backend.requests}) == 1
    assert served.backend.requests[0].grammar_param.split(".")[0] == (
        next(iter(fields)) if grammar else ""
    )
