"""Running a generation on behalf of a client, and stopping it as soon as the client is gone.

The request's body must have been read: from then on the only message that a client can send is
that it disconnected. Whatever ends the work, its async generators are closed before anything else
happens, so that the backend hears of it at once and not when garbage is collected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from actors.errors import TreeServeError

Result = TypeVar("Result")

BROKEN = "broken"
"""Stands in a request's state once its stream has ended with an error."""

logger = logging.getLogger(__name__)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work`; cancel it when the client disconnects.

    Raises:
        ClientDisconnect: the client went first.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
    finally:
        await _cancel(working, watching)
    return working.result()


class EventStream(Response):
    """Server-sent events, with three promises.

    An error before the first frame is raised, so that it gets a status of its own; a later one
    becomes the stream's last frame. A client that disconnects ends the work; that one which takes
    nothing is disconnected is the HTTP server's business.
    """

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[bytes, None], error_frame: Callable[[Exception], bytes]
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._error_frame = error_frame

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._run(scope, send))
        except ClientDisconnect:
            logger.info("a client left before its stream had ended")

    async def _run(self, scope: Scope, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            first = await anext(frames)
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            try:
                await _send_body(send, first)
                async for frame in frames:
                    await _send_body(send, frame)
            except TreeServeError as error:
                logger.warning("a stream ended early: %s", type(error).__name__)
                scope.setdefault("state", {})[BROKEN] = True
                await _send_body(send, self._error_frame(error))
            except Exception as error:
                scope.setdefault("state", {})[BROKEN] = True
                await _send_body(send, self._error_frame(error))
                await _send_body(send, b"", more=False)
                raise
            await _send_body(send, b"", more=False)


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs and wait until it has cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
