"""Which grammars are taken, and which are refused with the field at fault."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from actors.errors import InputError
from actors.grammar import (
    Grammars,
    grammar_of_choice,
    grammar_of_json,
    grammar_of_regex,
    grammar_of_schema,
)
from actors.vocabulary import Vocabulary

BYTES = tuple(bytes([byte]) for byte in range(256))
EOS = 256
GRAMMARS = Grammars(Vocabulary((*BYTES, b""), (*map(str, range(257)),), frozenset({EOS})), 260)


def accepts(source: str, text: str) -> bool:
    """True if `text` is a whole text of the grammar."""
    matcher = GRAMMARS.compile(source)
    data = list(text.encode())
    return matcher.accept(data) == len(data) and bool(matcher.allowed()[EOS])


def nested(depth: int) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


BAD_SCHEMAS = {
    "no type": {"type": "text"},
    "not": {"not": {"type": "string"}},
    "unique items": {"type": "array", "uniqueItems": True},
    "conditional": {"if": {"type": "string"}, "then": {"minLength": 3}},
    "property names": {"type": "object", "propertyNames": {"pattern": "a"}},
    "dependent": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "unknown format": {"type": "string", "format": "colour"},
    "look-ahead": {"type": "string", "pattern": "(?=a)b"},
    "bad pattern": {"type": "string", "pattern": "("},
    "overlap": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    "foreign": {"$ref": "http://localhost/schema.json"},
    "file": {"$ref": "file:///etc/passwd"},
    "impossible": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "misspelt": {"type": "string", "minLenght": 3},
    "of OpenAPI": {"properties": {"a": {"anyOf": [{"type": "string", "nullable": True}]}}},
    "options": {"x-guidance": {"lenient": True}, "not": {"type": "string"}},
    "deep": nested(100),
    "large": {"enum": [f"{'x' * 100}{number}" for number in range(1000)]},
}


@pytest.mark.parametrize("schema", BAD_SCHEMAS.values(), ids=BAD_SCHEMAS)
def test_a_schema_that_cannot_be_kept_is_refused(schema):
    with pytest.raises(InputError) as raised:
        grammar_of_schema(schema, "the.field")
    assert raised.value.param == "the.field"


def test_a_keyword_that_there_is_not_is_named_with_its_place():
    inner = {"type": "array", "items": {"type": "string", "minLenght": 3}}
    with pytest.raises(InputError, match=r"properties\.a\.items\.minLenght .*minLength meant"):
        grammar_of_schema({"type": "object", "properties": {"a": inner}}, "the.field")
    with pytest.raises(InputError, match=r"oneOf\[1\]\.typ "):
        grammar_of_schema({"oneOf": [{"type": "null"}, {"typ": "string"}]}, "the.field")


def test_names_values_and_annotations_are_no_keywords():
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "T",
        "type": "object",
        "properties": {
            "minLenght": {"const": {"colour": 1}, "default": {"colour": 1}, "x-order": 1},
            "b": {"enum": [{"typ": "x"}], "examples": [{"typ": "x"}], "deprecated": True},
        },
        "required": ["minLenght"],
        "additionalProperties": False,
    }
    assert accepts(grammar_of_schema(schema, "schema"), '{"minLenght": {"colour": 1}}')


DEAR_REGEXES = ["(a{1000}){1000}", "x(a{1000}){1000}", "((((a{50}){50}){50}){50})", "(a{90}){90}"]


@pytest.mark.parametrize("regex", ["", "(", "(?=a)b", r"\bword", "a" * 5000, *DEAR_REGEXES])
def test_a_regex_that_cannot_be_kept_is_refused(regex):
    with pytest.raises(InputError) as raised:
        grammar_of_regex(regex, "the.field")
    assert raised.value.param == "the.field"


@pytest.mark.parametrize("choices", [[], [""], ["a", ""], ["a"] * 1025, ["x" * 9000] * 10])
def test_choices_that_cannot_be_kept_are_refused(choices):
    with pytest.raises(InputError) as raised:
        grammar_of_choice(choices, "the.field")
    assert raised.value.param == "the.field"


@pytest.mark.parametrize("regex", DEAR_REGEXES)
def test_a_pattern_that_needs_too_much_work_is_refused(regex):
    with pytest.raises(InputError, match="too much work") as raised:
        grammar_of_schema({"type": "string", "pattern": f"^{regex}$"}, "the.field")
    assert raised.value.param == "the.field"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "no text fits it"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "use anyOf"),
        ({"properties": {"a": {"multipleOf": 0}}}, "properties.a.multipleOf must be positive"),
    ],
)
def test_it_is_said_in_words(schema, words):
    with pytest.raises(InputError, match=f"^the.field: .*{words}"):
        grammar_of_schema(schema, "the.field")


def test_what_is_large_but_no_work_is_taken():
    words = [f"{number:05d} words" for number in range(900)]
    assert accepts(grammar_of_schema({"enum": words}, "schema"), json.dumps(words[700]))
    assert accepts(grammar_of_choice(words, "choice"), words[700])
    names = r"\p{L}{1,50}( \p{L}{1,50}){0,30}"
    assert accepts(grammar_of_regex(names, "regex"), "caf\u00e9 \u4e2d\u6587")


def test_choices_are_taken_letter_by_letter():
    choices = ["yes", "no", 'q"\\\n\t/', "caf\u00e9 \U0001f525", "[a-z]", "$x", "\u2028", "a" * 500]
    source = grammar_of_choice(choices, "choice")
    assert all(accepts(source, choice) for choice in choices)
    assert not any(accepts(source, other) for other in ("ye", "yesno", "a", "\\n", ""))


def test_a_regex_is_matched_whole():
    source = grammar_of_regex("[0-9]{3}(-[a-z]+)?", "regex")
    assert accepts(source, "123")
    assert accepts(source, "123-abc")
    assert not any(accepts(source, other) for other in ("12", "1234", "123-", "x123"))


def test_blanks_are_free_between_the_parts_but_bounded():
    source = grammar_of_json("json")
    assert accepts(source, '{ "a" :\n  [1, 2.5e3, null, true, "\u00e9\\n"],\t"b": {} }')
    assert not accepts(source, '{"a":' + " " * 50 + "1}")
    assert not any(accepts(source, other) for other in ("[1]", '{"a" 1}', "{'a': 1}", "1", ""))


def test_a_schema_is_kept():
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 3, "maximum": 12},
            "s": {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[ab]*$"},
            "e": {"enum": ["x", 1, None]},
            "a": {"type": "array", "items": {"$ref": "#/$defs/d"}, "minItems": 1},
        },
        "$defs": {"d": {"const": "d"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    source = grammar_of_schema(schema, "schema")
    assert accepts(source, '{"n": 3, "s": "ab", "e": null, "a": ["d", "d"]}')
    for other in ("{}", '{"n": 2}', '{"n": 13}', '{"n": 3, "z": 1}', '{"n": 3, "s": "a"}'):
        assert not accepts(source, other)


def test_random_walks_end_in_texts_that_fit_the_schema():
    schema = {
        "type": "object",
        "properties": {
            "when": {"type": "string", "format": "date"},
            "size": {"type": "number", "exclusiveMinimum": 0},
            "tags": {"type": "array", "items": {"enum": ["p", "q"]}, "maxItems": 3},
        },
        "required": ["when", "tags"],
        "additionalProperties": False,
    }
    source = grammar_of_schema(schema, "schema")
    chance = np.random.default_rng(3)
    num_ended = 0
    for _ in range(20):
        matcher, text = GRAMMARS.compile(source), bytearray()
        for _ in range(400):
            allowed = matcher.allowed()
            if allowed[EOS]:
                num_ended += 1
                jsonschema.validate(json.loads(text), schema)
                break
            text.append(int(chance.choice(np.flatnonzero(allowed))))
            assert matcher.accept(text[-1:]) == 1
    assert num_ended > 5


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 123456789},
        {"type": "array", "items": {"type": "number", "multipleOf": 0.123457}},
        {"type": "number", "multipleOf": 1e300},
        {"type": "integer", "maximum": 10**400},
        {"type": "integer", "multipleOf": True},
        {"type": "integer", "multipleOf": -3},
        {"properties": {f"p{i}": {"type": "integer", "multipleOf": 999 - i} for i in range(11)}},
    ],
)
def test_numbers_that_no_automaton_should_hold_are_refused(schema):
    with pytest.raises(InputError) as caught:
        grammar_of_schema(schema, "guided_json")
    assert caught.value.param == "guided_json"


@pytest.mark.parametrize("multiple", [1, 5, 0.01, 0.25, 1000])
def test_usual_multiples_are_taken(multiple):
    assert grammar_of_schema({"type": "number", "multipleOf": multiple}, "guided_json")
