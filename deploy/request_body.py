"""From the bytes of a request to a checked request model, or to an InputError naming the field.

JSON is read more strictly than Python does by itself: UTF-8 only, no lone surrogates (they cannot
be encoded again). Whole numbers of more digits than Python reads are told of by their field. NaN
and Infinity are let through here, so that the model that checks the fields can say which one holds
them. A null is the same as leaving the field out.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.message import Message
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from actors.errors import InputError

Model = TypeVar("Model", bound=BaseModel)

TOO_DEEP = "nested too deeply"
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
    if kind.startswith("recursion"):
        raise InputError(f"{first['loc'][0]} is {TOO_DEEP}", str(first["loc"][0]))
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
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InputError("the body is not text in UTF-8", code="invalid_json") from error
    return parse_json(text, "the body")


def parse_json(text: str, name: str, param: str | None = None) -> object:
    """The value of a JSON text.

    Args:
        name: what the text is, for messages.
        param: the field that holds it.

    Raises:
        InputError: on `param`, or on the field within the body that holds too long a number.
    """
    try:
        return _loads(text, name, param)
    except ValueError as error:  # a number that Python does not read
        most = sys.get_int_max_str_digits()
        long_number = object()

        def read(digits: str) -> object:
            return long_number if len(digits.lstrip("-")) > most else None

        where = param or _path_to(long_number, _loads(text, name, param, read))
        message = f"{where or name}: a number has more than {most} digits"
        raise InputError(message, where, "invalid_value") from error


def _loads(
    text: str, name: str, param: str | None, parse_int: Callable[[str], object] | None = None
) -> object:
    code = "invalid_value" if param else "invalid_json"
    try:
        return json.loads(text, parse_int=parse_int)
    except RecursionError as error:
        raise InputError(f"{name} is {TOO_DEEP}", param, code) from error
    except json.JSONDecodeError as error:
        raise InputError(f"{name} is not valid JSON ({error.msg})", param, code) from error


def _path_to(wanted: object, body: object) -> str | None:
    """Where a part stands in a body; None if that is in no field."""
    path: list[str] = []
    ways: list[Iterator[tuple[str, object]]] = [_inside(body)]
    while ways:
        for step, part in ways[-1]:
            if part is wanted:
                return "".join([*path, step]).removeprefix(".")
            if isinstance(part, dict | list):
                path.append(step)
                ways.append(_inside(part))
                break
        else:
            ways.pop()
            del path[-1:]
    return None


def _inside(value: object) -> Iterator[tuple[str, object]]:
    """What is in an object or list, each with its step of a path."""
    if isinstance(value, dict):
        return ((f".{key}", part) for key, part in value.items())
    if isinstance(value, list):
        return ((f"[{place}]", part) for place, part in enumerate(value))
    return iter(())


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
