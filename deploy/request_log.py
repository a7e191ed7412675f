"""One line in the log for each request for generation, when it has been answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.logs import log_event, request_id
from deploy.http_metrics import WatchedSend, is_generation
from deploy.streaming import BROKEN

logger = logging.getLogger(__name__)

RESPONSE_ID = "response_id"


def name_request(request: Request, response_id: str) -> None:
    """From here on, lines of this request's task carry its id."""
    setattr(request.state, RESPONSE_ID, response_id)
    request_id.set(response_id)


class Logged:
    """An ASGI application, logged.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_generation(scope):
            await self._app(scope, receive, send)
            return
        begun_s = self._clock()
        watched = WatchedSend(send)
        state = scope.setdefault("state", {})
        try:
            await self._app(scope, receive, watched)
        finally:
            log_event(
                logger,
                "request answered" if watched.status is not None else "client left",
                request_id=state.get(RESPONSE_ID),
                route=scope["path"],
                status=watched.status,
                broken=BROKEN in state,
                seconds=round(self._clock() - begun_s, 6),
            )
