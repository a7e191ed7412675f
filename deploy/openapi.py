"""What `/openapi.json` says of the bodies, which the routes read and check themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from deploy.openai_schema import ChatRequest, CompletionRequest, GenerationFields

_REF = "#/components/schemas/{model}"

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


def describe(app: FastAPI) -> None:
    """Let `app` describe itself, request bodies included."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, bodies = models_json_schema(
        [(CompletionRequest, "validation"), (ChatRequest, "validation")], ref_template=_REF
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(bodies["$defs"])
    schemas["Error"] = ERROR_SCHEMA
    return document
