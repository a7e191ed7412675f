"""From the bytes of a request to a checked request model, or to an InputError naming the field.

JSON is read more strictly than Python does by itself: UTF-8 only, no lone surrogates (they cannot
be encoded again). NaN and Infinity are let through here, so that the model that checks the fields
can say which one holds them. A null is the same as leaving the field out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from email.message import Message
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from actors.errors import InputError

Model = TypeVar("Model", bound=BaseModel)

_SURROGATE = re.compile("[\ud800-\udfff]")


class BodyTooLarge(InputError):
    """The body is longer than the server reads (HTTP 413)."""


class NotJsonContent(InputError):
    """The content type is not JSON (HTTP 415).

    Refused because a web page may send any other type to a server on its visitor's own machine
    without asking.
    """


async def read_json_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The request's body as a JSON object.

    Raises:
        InputError: it is too long, no JSON, or no object.
    """
    _require_json_content(request.headers.get("content-type", ""))
    raw = await _read_limited(request, max_bytes)
    value = _parse(raw)
    if not isinstance(value, dict):
        raise InputError("the body must be a JSON object", code="invalid_json")
    if b"\\ud" in raw.lower():
        _refuse_surrogates(value)
    return value


def validate(model: type[Model], fields: Mapping[str, Any]) -> Model:
    """Check `fields` against a request model; nulls of fields that it knows are left out.

    Raises:
        InputError: naming the offending field that comes first in `fields`, by its path in the
            caller's own body, as in `messages[0].content`.
    """
    known = model.model_fields
    fields = {key: value for key, value in fields.items() if value is not None or key not in known}
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
    order: dict[int | str, int] = {name: place for place, name in enumerate(fields)}
    first = min(problems, key=lambda problem: order.get(problem["loc"][0], len(order)))
    kind = first["type"]
    param = _path(fields, first["loc"], missing=kind == "missing")
    if kind == "missing":
        raise InputError(f"{param} is required", param, "missing_required_parameter")
    if kind == "extra_forbidden":
        raise InputError(f"unknown field {param}", param, "unknown_parameter")
    raise InputError(f"{param}: {first['msg']}", param, "invalid_value")


def _require_json_content(header: str) -> None:
    message = Message()
    message["content-type"] = header
    kind = message.get_content_type()
    if kind != "application/json" and not kind.endswith("+json"):
        raise NotJsonContent("send the header Content-Type: application/json")


async def _read_limited(request: Request, max_bytes: int) -> bytes:
    too_large = BodyTooLarge(f"the body may have at most {max_bytes} bytes", code="body_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


def _parse(raw: bytes) -> object:
    try:
        return json.loads(raw.decode())
    except RecursionError as error:
        raise InputError("the body is nested too deeply", code="invalid_json") from error
    except ValueError as error:  # not UTF-8, not JSON, or a number of thousands of digits
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise InputError(f"the body is not valid JSON ({reason})", code="invalid_json") from error


def _refuse_surrogates(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if any(_SURROGATE.search(text) for text in _strings({name: value})):
            shown = name.encode(errors="backslashreplace").decode()
            raise InputError(f"{shown} holds half of a surrogate pair", shown, "invalid_unicode")


def _strings(value: object) -> Sequence[str]:
    """Every string in a JSON value, keys included."""
    found: list[str] = []
    waiting: list[object] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            waiting.extend(item.keys())
            waiting.extend(item.values())
    return found


def _path(fields: Mapping[str, Any], loc: Sequence[str | int], *, missing: bool) -> str:
    """Where `loc` points in the caller's body; the names that a union adds are left out."""
    path = ""
    value: Any = fields
    for place, key in enumerate(loc):
        if isinstance(value, list) and isinstance(key, int) and key < len(value):
            path += f"[{key}]"
            value = value[key]
        elif isinstance(value, Mapping) and isinstance(key, str):
            if key in value:
                value = value[key]
            elif not (missing and place == len(loc) - 1):
                continue
            path += f".{key}" if path else key
    return path
