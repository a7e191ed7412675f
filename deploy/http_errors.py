"""Every error that leaves over HTTP: `{"error": {"message", "type", "param", "code"}}`.

The one place where our exceptions and the framework's become status codes. An unexpected
exception becomes a 500 that tells nothing of the server's inside.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from actors.errors import (
    ExpiredError,
    InputError,
    OverloadedError,
    PeerError,
    TreeServeError,
    UnavailableError,
)
from deploy.api_keys import InvalidKey
from deploy.request_body import BodyTooLarge, NotJsonContent
from deploy.requests import UnknownModel
from deploy.responses import to_json

CLIENT_CLOSED_REQUEST = 499
"""nginx's code for a client that left; nobody reads it but a log."""

MAX_MESSAGE = 500
MAX_PARAM = 200
"""Characters of what may hold a client's own words."""
GAP = " […] "

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ApiError:
    """An error as the client sees it."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None

    def body(self) -> dict[str, Any]:
        shown = {
            "message": shortened(self.message, MAX_MESSAGE),
            "type": self.type,
            "param": None if self.param is None else shortened(self.param, MAX_PARAM),
            "code": self.code,
        }
        return {"error": shown}

    def response(self, extra_headers: dict[str, str] | None = None) -> Response:
        headers = dict(extra_headers or {})
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
            headers["connection"] = "close"  # a stranger is to hold no place for connections
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        return Response(to_json(self.body()), self.status, headers, "application/json")


def shortened(text: str, most: int) -> str:
    """A text, or its two ends where it is longer than `most` characters."""
    if len(text) <= most:
        return text
    end = (most - len(GAP)) // 2
    return f"{text[:end]}{GAP}{text[-end:]}"


def api_error(error: Exception) -> ApiError:
    """How an exception looks from outside."""
    if isinstance(error, InputError):
        status = _INPUT_STATUS.get(type(error), 400)
        return ApiError(status, error.message, "invalid_request_error", error.param, error.code)
    if isinstance(error, OverloadedError):
        return ApiError(
            429,
            error.message,
            "rate_limit_error",
            code="overloaded",
            retry_after_s=error.retry_after_s,
        )
    if isinstance(error, ExpiredError):
        return ApiError(504, str(error), "server_error", code="timeout")
    if isinstance(error, UnavailableError):
        return ApiError(503, str(error), "server_error", code="unavailable", retry_after_s=1.0)
    if isinstance(error, PeerError):
        message = "a part of the server failed; the request may be sent again"
        return ApiError(503, message, "server_error", code="unavailable", retry_after_s=1.0)
    return ApiError(500, "internal error", "server_error", code="internal_error")


def error_frame(error: Exception) -> bytes:
    """The last frame of a stream that failed after it had begun."""
    return b"data: " + to_json(api_error(error).body()) + b"\n\n"


def add_error_handlers(app: FastAPI) -> None:
    """Give every error of `app` the one shape."""
    app.add_exception_handler(TreeServeError, _on_our_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_unexpected_error)


_INPUT_STATUS: dict[type[InputError], int] = {
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    NotJsonContent: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    InvalidKey: HTTPStatus.UNAUTHORIZED,
    UnknownModel: HTTPStatus.NOT_FOUND,
}


async def _on_our_error(request: Request, error: Exception) -> Response:
    shown = api_error(error)
    if shown.status >= 500:
        logger.warning("%s: %s: %s", request.url.path, type(error).__name__, error)
    return shown.response()


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Unknown routes and methods."""
    if not isinstance(error, HTTPException):
        raise error
    headers = dict(error.headers or {})
    if request.method == "OPTIONS" and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)
    code = HTTPStatus(error.status_code).name.lower()
    message = f"{request.method} {request.url.path}: {error.detail}"
    shown = ApiError(error.status_code, message, "invalid_request_error", code=code)
    return shown.response(headers)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    # The framework raises the exception again, for the server's log.
    return api_error(error).response()
