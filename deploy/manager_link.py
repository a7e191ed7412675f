"""The ingress's end of the way to a request manager: one session, kept open.

What requests want goes up in batches: while one is on its way, the next gathers. When the session
is lost, everything that hung on it hears PeerUnavailable, and another one is opened. Ray is reached
only through what is handed in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from actors.errors import PeerUnavailable, TreeServeError, UnavailableError
from actors.request_manager.outbox import News, Outbox
from deploy.session import Batch, Group

RETRY_S = 0.2
QUIET_BREATHS = 5
"""Turns of the event loop without a new request after which no more is waited for: about as many
lie between a connection's first byte and its request. Where nothing happens, a turn takes 20 us."""
MAX_GATHER_S = 0.01
"""How long requests that come are waited for, at most, however busy the loop is."""

logger = logging.getLogger(__name__)


class EventStream(Protocol):
    """A streaming call of a Serve handle."""

    def __aiter__(self) -> AsyncIterator[Batch]: ...

    def cancel(self) -> None:
        """End the call; does nothing if it is over."""


@dataclass(frozen=True)
class Transport:
    """How a manager is called.

    Attributes:
        events, exchange: as in `session.Sessions`.
        foreign: the exceptions of the transport.
        map_error: one of ours for one of them.
    """

    events: Callable[[str], EventStream]
    exchange: Callable[
        [str, Sequence[Group], Sequence[str]], Awaitable[list[TreeServeError | None]]
    ]
    foreign: tuple[type[Exception], ...]
    map_error: Callable[[Exception], TreeServeError]


class Session:
    """One session: requests go up, their news come down.

    Args:
        transport: to the manager.
        on_open, on_end: called when the manager takes requests, and when it no longer does.
    """

    def __init__(
        self, transport: Transport, on_open: Callable[[Session], None], on_end: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._on_open = on_open
        self._on_end = on_end
        self._id = uuid4().hex
        self._readers: dict[str, Outbox] = {}
        self._groups: list[tuple[Group, asyncio.Future[TreeServeError | None]]] = []
        self._cancelled: list[str] = []
        self._wanted = asyncio.Event()
        self._lost: TreeServeError | None = None

    async def submit(self, group: Group, outbox: Outbox) -> None:
        """Have requests run whose news go to `outbox`.

        Raises:
            TreeServeError: why they were refused; PeerUnavailable if the session is lost.
        """
        if self._lost is not None:
            raise self._lost
        outcome: asyncio.Future[TreeServeError | None] = asyncio.get_running_loop().create_future()
        for asked in group:
            self._readers[asked.request_id] = outbox
        self._groups.append((group, outcome))
        self._wanted.set()
        if (error := await outcome) is not None:
            for asked in group:
                self._readers.pop(asked.request_id, None)
            raise error

    def cancel(self, request_ids: Iterable[str]) -> None:
        """Nobody wants these any more; those that are over are left alone."""
        for request_id in request_ids:
            if self._readers.pop(request_id, None) is not None:
                self._cancelled.append(request_id)
                self._wanted.set()

    async def run(self) -> None:
        """Open the session and serve it until it is lost; everybody has been told so then."""
        ends = [
            asyncio.ensure_future(self._receive()),
            asyncio.ensure_future(self._send()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(*(end for end in ends if end.done()))
        except self._transport.foreign as problem:
            reason = self._transport.map_error(problem)
            self.end(PeerUnavailable(f"the request manager is lost: {reason}"))
        finally:
            self.end(PeerUnavailable("the request manager has stopped"))
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    def end(self, error: TreeServeError) -> None:
        """Everybody hears `error`; does nothing the second time."""
        if self._lost is not None:
            return
        self._lost = error
        self._on_end()
        for _, outcome in self._groups:
            if not outcome.done():
                outcome.set_result(error)
        for request_id, outbox in self._readers.items():
            outbox.put(request_id, News(error=error))
        self._readers.clear()

    async def _receive(self) -> None:
        stream = self._transport.events(self._id)
        try:
            async for batch in stream:
                if not batch:
                    self._on_open(self)
                for request_id, news in batch.items():
                    self._deliver(request_id, news)
        finally:
            stream.cancel()

    def _deliver(self, request_id: str, news: News) -> None:
        outbox = self._readers.get(request_id)
        if outbox is not None:
            outbox.put(request_id, news)
            if news.is_last:
                del self._readers[request_id]

    async def _gather(self) -> None:
        """Let requests that come in the same breath go together: they share their first step."""
        num_quiet = 0
        end_s = time.monotonic() + MAX_GATHER_S
        while self._groups and time.monotonic() < end_s:
            num_groups = len(self._groups)
            await asyncio.sleep(0)
            num_quiet = num_quiet + 1 if len(self._groups) == num_groups else 0
            if num_quiet == QUIET_BREATHS:
                return

    async def _send(self) -> None:
        while True:
            await self._wanted.wait()
            await self._gather()
            self._wanted.clear()
            groups, cancelled = self._groups.copy(), self._cancelled.copy()
            outcomes = await self._transport.exchange(
                self._id, [group for group, _ in groups], cancelled
            )
            del self._groups[: len(groups)], self._cancelled[: len(cancelled)]
            for (_, outcome), error in zip(groups, outcomes, strict=True):
                if not outcome.done():
                    outcome.set_result(error)


class ManagerLink:
    """A session with the manager that is opened again when it is lost."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._session: Session | None = None
        self._is_open = asyncio.Event()
        self._refusal: TreeServeError | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float) -> None:
        """Open the first session. Raises UnavailableError if that takes too long."""
        self._task = asyncio.create_task(self._keep_open())
        await self.session(timeout_s)

    async def session(self, timeout_s: float) -> Session:
        """The open session, waited for if need be.

        Raises:
            UnavailableError: there is none in time, or the link is closed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._refusal is None and self._session is None:
                    await self._is_open.wait()
        except TimeoutError:
            gone = "the request manager is gone; another one is being started"
            raise UnavailableError(gone) from None
        if self._refusal is not None or self._session is None:
            raise self._refusal or UnavailableError("the link to the manager is closed")
        return self._session

    async def close(self, error: TreeServeError) -> None:
        """End the session and open no other; whoever hangs on it hears `error`."""
        self._refusal = error
        if self._session is not None:
            self._session.end(error)
        self._is_open.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_open(self) -> None:
        while True:
            try:
                await Session(self._transport, self._opened, self._ended).run()
            except Exception:  # a supervised loop: whatever ended the session, another may hold
                logger.exception("the session with the request manager ended by a fault")
            await asyncio.sleep(RETRY_S)

    def _opened(self, session: Session) -> None:
        self._session = session
        self._is_open.set()

    def _ended(self) -> None:
        self._session = None
        self._is_open.clear()
