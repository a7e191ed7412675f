"""What an output must look like: OpenAI's `response_format`, and the fields that vLLM has for it.

A request has one of these at most. Each becomes the source text of a grammar (`actors.grammar`),
which is checked here, before anything is queued: a schema that cannot be enforced as a whole is
refused by its field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, JsonValue, Tag

from actors.errors import InputError
from actors.grammar import (
    MAX_CHOICES,
    MAX_REGEX_BYTES,
    grammar_of_choice,
    grammar_of_json,
    grammar_of_regex,
    grammar_of_schema,
)
from deploy.strict import Strict, also, described, told_by

Schema = dict[str, JsonValue]
Choices = Annotated[
    list[Annotated[str, described(minLength=1)]],
    Field(fail_fast=True, max_length=MAX_CHOICES),
    described(minItems=1),
]
Regex = Annotated[str, described(minLength=1, maxLength=MAX_REGEX_BYTES)]
Wanted = Schema | list[str] | str | None
"""A JSON schema, choices, a regular expression; None for any JSON object."""


class AnyText(Strict):
    """No form at all."""

    type: Annotated[Literal["text"], also("json_object", "json_schema")]


class JsonObject(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """A JSON schema; keywords that cannot be enforced are refused."""

    name: str | None = None
    description: str | None = None
    json_schema: Schema = Field(alias="schema")
    strict: bool | None = None
    """Every schema is kept to the letter, whatever this says."""


class JsonOfSchema(Strict):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    Annotated[AnyText, Tag("text")]
    | Annotated[JsonObject, Tag("json_object")]
    | Annotated[JsonOfSchema, Tag("json_schema")],
    told_by("type", ("json_object", "json_schema"), otherwise="text"),
]


class StructuredOutputs(Strict):
    """vLLM's collection; one of these."""

    json_object: Literal[True] | None = None
    json_schema: Schema | None = Field(default=None, alias="json")
    regex: Regex | None = None
    choice: Choices | None = None


class StructuredFields(Strict):
    """The fields of a request that say what its output must look like; one at most."""

    response_format: ResponseFormat | None = None
    """The output is JSON: any object, or what fits a schema."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's way to say so."""
    guided_json: Schema | None = None
    """The output is JSON that fits this schema."""
    guided_regex: Regex | None = None
    """The output is matched whole by this regular expression."""
    guided_choice: Choices | None = None
    """The output is one of these texts."""


class OutputGrammar(NamedTuple):
    """A grammar's source, empty for none, and the field that asks for it."""

    source: str = ""
    param: str = ""


def wanted_by(fields: StructuredFields) -> tuple[str, Wanted] | None:
    """The field that says what the output must look like, and what it says; None for no such field.

    Raises:
        InputError: naming the field, if there are two, or it says nothing.
    """
    if fields.structured_outputs == StructuredOutputs():
        raise InputError("structured_outputs is empty", "structured_outputs")
    found = [*_of_response_format(fields.response_format), *_of_vllm_fields(fields)]
    if len(found) > 1:
        raise InputError(f"{found[0][0]} is given already", found[1][0])
    return found[0] if found else None


def source_of(param: str, wanted: Wanted) -> str:
    """The source of the grammar that a field asks for.

    Raises:
        InputError: naming the field, if it is wrong or cannot be enforced.
    """
    if wanted is None:
        return grammar_of_json(param)
    if isinstance(wanted, str):
        return grammar_of_regex(wanted, param)
    if isinstance(wanted, list):
        return grammar_of_choice(wanted, param)
    return grammar_of_schema(wanted, param)


def _of_response_format(asked: ResponseFormat | None) -> Iterator[tuple[str, Wanted]]:
    if isinstance(asked, JsonObject):
        yield "response_format", None
    elif isinstance(asked, JsonOfSchema):
        yield "response_format.json_schema.schema", asked.json_schema.json_schema


def _of_vllm_fields(fields: StructuredFields) -> Iterator[tuple[str, Wanted]]:
    asked = fields.structured_outputs or StructuredOutputs()
    if asked.json_object:
        yield "structured_outputs.json_object", None
    named: list[tuple[str, Wanted]] = [
        ("structured_outputs.json", asked.json_schema),
        ("structured_outputs.regex", asked.regex),
        ("structured_outputs.choice", asked.choice),
        ("guided_json", fields.guided_json),
        ("guided_regex", fields.guided_regex),
        ("guided_choice", fields.guided_choice),
    ]
    yield from (pair for pair in named if pair[1] is not None)
