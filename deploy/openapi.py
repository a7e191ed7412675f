"""What `/openapi.json` says of the bodies, which the routes read and check themselves.

Limits that the request models check they also tell; those that are kept behind them, as of the
model that is served and of how it is configured, are put in here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from deploy.backend import BackendDescription
from deploy.openai_schema import (
    MAX_CHOICES_PER_PROMPT,
    ChatRequest,
    CompletionRequest,
    GenerationFields,
)

_REF = "#/components/schemas/{model}"

_Limits = Mapping[str, Mapping[str, Any]]
"""By the type of a value, keywords of JSON schema."""

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

ERROR_RESPONSE: dict[str, Any] = {
    "description": "Any error",
    "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}},
}


def generation_route(body: type[GenerationFields]) -> dict[str, Any]:
    """Keyword arguments of a route that generates from `body`."""
    schema = {"$ref": _REF.format(model=body.__name__)}
    answer = {
        "description": "The answer; with `stream: true` server-sent events, closed by `[DONE]`",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    return {
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
        "responses": {200: answer, "default": ERROR_RESPONSE},
    }


def describe(app: FastAPI, served: BackendDescription, max_choices: int) -> None:
    """Let `app` describe itself, request bodies included.

    Args:
        max_choices: most outputs of one request.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = _document(app)
            _narrow(document["components"]["schemas"], served, max_choices)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, bodies = models_json_schema(
        [(CompletionRequest, "validation"), (ChatRequest, "validation")], ref_template=_REF
    )
    for route in document["paths"].values():
        for operation in route.values():
            operation["responses"].pop("422", None)  # FastAPI's own, which no route gives
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(bodies["$defs"])
    schemas["Error"] = ERROR_SCHEMA
    return document


def _narrow(schemas: dict[str, Any], served: BackendDescription, max_choices: int) -> None:
    """Put in what depends on the model that is served, and on how it is."""
    tokens = {"integer": {"maximum": served.max_context_tokens - 1}}  # a prompt has one at least
    token_ids = {"integer": {"minimum": 0, "maximum": served.vocab_size - 1}}
    token_names = {"object": {"propertyNames": {"pattern": _numbers_to(served.vocab_size - 1)}}}
    choices = {"integer": {"maximum": min(max_choices, MAX_CHOICES_PER_PROMPT)}}
    nodes = {"integer": {"minimum": served.tree_nodes.least, "maximum": served.tree_nodes.most}}
    common: dict[str, _Limits] = {
        "model": {"string": {"const": served.model_name}},
        "n": choices,
        "best_of": choices,
        "stop_token_ids": token_ids,
        "logit_bias": token_names,
        "max_tokens": tokens,
        "min_tokens": tokens,
    }
    messages = {"array": {"maxItems": served.max_context_tokens}}
    limits: dict[str, dict[str, _Limits]] = {
        "CompletionRequest": {**common, "prompt": token_ids},
        "ChatRequest": {**common, "max_completion_tokens": tokens, "messages": messages},
        "Speculation": {
            "max_nodes": nodes,
            "drafters": {"string": {"enum": list(served.drafters)}},
            "verification": {"string": {"enum": list(served.verifications)}},
        },
    }
    for model, fields in limits.items():
        for field, keywords in fields.items():
            for part in _parts(schemas[model]["properties"][field]):
                part.update(keywords.get(part.get("type", ""), {}))
    for part in _parts(schemas["CompletionRequest"]["properties"]["prompt"]):
        if part.get("type") == "array" and part["items"]["type"] != "integer":
            part["maxItems"] = max_choices


def _numbers_to(most: int) -> str:
    """A pattern of the decimal numbers from 0 to `most`, without leading zeros."""
    digits = str(most)
    ways = [digits]
    for place, digit in enumerate(digits):  # equal up to here, less in this place
        least = 0 if place or len(digits) == 1 else 1
        if int(digit) > least:
            rest = len(digits) - place - 1
            ways.append(f"{digits[:place]}[{least}-{int(digit) - 1}][0-9]{{{rest}}}")
    if len(digits) > 1:
        ways += ["0", f"[1-9][0-9]{{0,{len(digits) - 2}}}"]
    return f"^({'|'.join(ways)})$"


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A schema, and those of the forms and items that it is made of."""
    yield schema
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    for part in (*inner, schema["items"]) if "items" in schema else inner:
        yield from _parts(part)
