"""Who may come in: keys, each key's share of the places, and nobody while the server drains.

An ASGI application around the real one. It looks at requests to `/v1` before their bodies are
read, and knows when each has been answered to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.errors import OverloadedError, TreeServeError, UnavailableError
from actors.request_manager.pace import Pace
from deploy.api_keys import ApiKeys, InvalidKey
from deploy.http_errors import api_error

PROTECTED = "/v1/"
STRANGER_BODY_S = 2.0
"""How long the rest of a request without a valid key may take to come."""


class Visit:
    """One request on its way through the server.

    Attributes:
        holder: the number of its key.
    """

    def __init__(
        self, places: Counter[int], holder: int, max_places: int | None, pace: Pace
    ) -> None:
        self._places = places
        self._pace = pace
        self.holder = holder
        self._max_places = max_places
        self._num_taken = 0

    def take(self, num_places: int) -> None:
        """Count the outputs that the request wants as its key's.

        Raises:
            OverloadedError: with them the key would have more than its share.
        """
        held = self._places[self.holder]
        if self._max_places is not None and held + num_places > self._max_places:
            raise OverloadedError(
                f"{held} outputs of this API key are being generated or wait; "
                f"it may have {self._max_places} at one time",
                self._pace.wait_s(held + num_places - self._max_places),
            )
        self._places[self.holder] += num_places
        self._num_taken += num_places

    def leave(self) -> None:
        """Give the places back."""
        self._pace.note(self._num_taken)
        self._places[self.holder] -= self._num_taken
        if not self._places[self.holder]:
            del self._places[self.holder]


class Door:
    """The state of the entrance.

    Args:
        keys: who may come in.
        max_places_per_key: outputs of one key that run or wait at one time; None for no limit.
        max_inside: requests inside at one time, those counted whose bodies are still being read:
            what their bodies take is bounded.
    """

    def __init__(
        self, keys: ApiKeys, max_places_per_key: int | None = None, max_inside: int = 1024
    ) -> None:
        self._keys = keys
        self.max_places_per_key = max_places_per_key
        self._max_inside = max_inside
        self._places: Counter[int] = Counter()
        self._pace = Pace(time.monotonic)
        self._num_inside = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_draining = False
        self.is_parting = False
        """Connections end with their answers."""

    @property
    def num_inside(self) -> int:
        """Requests that have come in and are not answered yet."""
        return self._num_inside

    def enter(self, authorization: str | None) -> Visit:
        """Let a request in; call `exit` after it.

        Raises:
            InvalidKey: it has no key of ours.
            UnavailableError: the server drains.
            OverloadedError: too many are inside.
        """
        holder = self._keys.holder(authorization)
        if self.is_draining:
            raise UnavailableError("the server is shutting down and takes no more requests")
        if self._num_inside >= self._max_inside:
            raise OverloadedError("too many requests are open", self._pace.wait_s(1))
        self._num_inside += 1
        self._is_empty.clear()
        return Visit(self._places, holder, self.max_places_per_key, self._pace)

    def exit(self, visit: Visit) -> None:
        visit.leave()
        self._num_inside -= 1
        if not self._num_inside:
            self._is_empty.set()

    async def drain(self, grace_s: float) -> bool:
        """Let nobody in any more; True if all who are inside have left within `grace_s`."""
        self.is_draining = self.is_parting = True
        return await self.empty(grace_s)

    async def empty(self, grace_s: float) -> bool:
        """True as soon as nobody is inside, False after `grace_s`."""
        try:
            async with asyncio.timeout(grace_s):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True


class Doorkeeper:
    """The door around an application."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PROTECTED):
            await self._app(scope, receive, send)
            return
        try:
            visit = self._door.enter(Headers(scope=scope).get("authorization"))
        except InvalidKey as error:
            await api_error(error).response()(scope, receive, _behind_body(receive, send))
            return
        except TreeServeError as error:
            await api_error(error).response()(scope, receive, send)
            return
        scope.setdefault("state", {})["visit"] = visit
        try:
            await self._app(scope, receive, self._closing(send))
        finally:
            self._door.exit(visit)

    def _closing(self, send: Send) -> Send:
        """Once the server is to end, a connection ends with its answer."""

        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._door.is_parting:
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        return send_closing


def _behind_body(receive: Receive, send: Send) -> Send:
    """Sends an answer at once, but ends it when the request's body has come, or does not come soon.

    The connection ends with the answer, which would be lost if its client were still sending.
    """

    async def read_body() -> None:
        while (await receive()).get("more_body"):
            pass

    async def send_behind(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body"):
            await send(message)
            return
        await send({**message, "more_body": True})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(read_body(), STRANGER_BODY_S)
        await send({"type": "http.response.body"})

    return send_behind


class HeadAsGet:
    """Around an application: a HEAD is answered as the GET, without its body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            empty = {"body": b""} if message["type"] == "http.response.body" else {}
            await send({**message, **empty})

        await self._app({**scope, "method": "GET"}, receive, send_head)
