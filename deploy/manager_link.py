"""The ingress's end of the way to request managers: a session with each of them, kept open.

What requests want goes up in batches: while one is on its way, the next gathers. A roll call tells
which managers there are. When a session is lost, or its manager is not called any more because it
is about to stop, everything that hung on it hears PeerUnavailable, and goes to another manager.
Ray is reached only through what is handed in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from actors.errors import PeerUnavailable, TreeServeError, UnavailableError
from actors.request_manager.outbox import News, Outbox
from deploy.backend import BackendDescription
from deploy.session import Batch, Group

ROLL_CALL_S = 1.0
"""Between two roll calls: less than a manager that is to stop is given (`deploy.app`), so that its
requests have gone elsewhere by then."""
QUIET_BREATHS = 5
"""Turns of the event loop without a new request after which no more is waited for: about as many
lie between a connection's first byte and its request. Where nothing happens, a turn takes 20 us."""
MAX_GATHER_S = 0.01
"""How long requests that come are waited for, at most, however busy the loop is."""

logger = logging.getLogger(__name__)


class ManagerLeaves(PeerUnavailable):
    """The manager is to stop: no fault of what it runs, which goes to another one."""


class EventStream(Protocol):
    """A streaming call of a Serve handle."""

    def __aiter__(self) -> AsyncIterator[Batch]: ...

    def cancel(self) -> None:
        """End the call; does nothing if it is over."""


@dataclass(frozen=True)
class Manager:
    """A request manager, as the roll call tells of it.

    Attributes:
        id: which of them; never used again.
        configuration: a hash of what it was configured with.
        description: what it serves.
    """

    id: str
    configuration: str
    description: BackendDescription


@dataclass(frozen=True)
class Transport:
    """How managers are called.

    Attributes:
        roll_call: those that take requests; None in the place of one that did not answer.
        events, exchange: as in `session.Sessions`, behind the id of a manager.
        foreign: the exceptions of the transport.
        map_error: one of ours for one of them.
    """

    roll_call: Callable[[], Coroutine[Any, Any, Sequence[Manager | None]]]
    events: Callable[[str, str], EventStream]
    exchange: Callable[
        [str, str, Sequence[Group], Sequence[str]], Awaitable[list[TreeServeError | None]]
    ]
    foreign: tuple[type[Exception], ...]
    map_error: Callable[[Exception], TreeServeError]


class Session:
    """One session: requests go up, their news come down.

    Args:
        transport: to the managers.
        manager: with whom.
        on_open, on_end: called when the manager takes requests, and when it no longer does.
    """

    def __init__(
        self,
        transport: Transport,
        manager: Manager,
        on_open: Callable[[Session], None],
        on_end: Callable[[Session], None],
    ) -> None:
        self._transport = transport
        self.manager = manager
        self._on_open = on_open
        self._on_end = on_end
        self._id = uuid4().hex
        self._readers: dict[str, Outbox] = {}
        self._groups: list[tuple[Group, asyncio.Future[TreeServeError | None]]] = []
        self._cancelled: list[str] = []
        self._wanted = asyncio.Event()
        self._lost: TreeServeError | None = None

    @property
    def num_running(self) -> int:
        """Requests that have been submitted and are not over."""
        return len(self._readers)

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
        self._on_end(self)
        for _, outcome in self._groups:
            if not outcome.done():
                outcome.set_result(error)
        for request_id, outbox in self._readers.items():
            outbox.put(request_id, News(error=error))
        self._readers.clear()

    async def _receive(self) -> None:
        stream = self._transport.events(self.manager.id, self._id)
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
                self.manager.id, self._id, [group for group, _ in groups], cancelled
            )
            del self._groups[: len(groups)], self._cancelled[: len(cancelled)]
            for (_, outcome), error in zip(groups, outcomes, strict=True):
                if not outcome.done():
                    outcome.set_result(error)


class ManagerLink:
    """Sessions with all managers that serve the same, opened and opened again as they come and go.

    Args:
        transport: to the managers.
        configuration: of the ingress; what it serves is what a manager of this configuration says.
    """

    def __init__(self, transport: Transport, configuration: str) -> None:
        self._transport = transport
        self._configuration = configuration
        self._description: BackendDescription | None = None
        self._open: dict[str, Session] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._is_replaced = False
        self._changed = asyncio.Event()
        self._refusal: TreeServeError | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def managers(self) -> list[Manager]:
        """With whom there is a session."""
        return [session.manager for session in self._open.values()]

    @property
    def is_being_replaced(self) -> bool:
        """True while there is no manager because the last one was stopped on purpose: another one
        comes."""
        return self._is_replaced and not self._open

    async def start(self, timeout_s: float) -> BackendDescription:
        """Open the first session with a manager of the ingress's own configuration.

        Returns:
            What it serves; from then on managers that serve the same are taken, however configured.

        Raises:
            UnavailableError: that takes too long.
        """
        self._task = asyncio.create_task(self._keep_open())
        return (await self.session(timeout_s)).manager.description

    async def session(self, timeout_s: float) -> Session:
        """The open session with the fewest requests, waited for if need be.

        Raises:
            UnavailableError: there is none in time, or the link is closed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._refusal is None and not self._open:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            gone = "the request manager is gone; another one is being started"
            raise UnavailableError(gone) from None
        if self._refusal is not None:
            raise self._refusal
        return min(self._open.values(), key=lambda session: session.num_running)

    async def close(self, error: TreeServeError) -> None:
        """End all sessions and open no other; whoever hangs on one hears `error`."""
        self._refusal = error
        for session in list(self._open.values()):
            session.end(error)
        self._changed.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_open(self) -> None:
        try:
            while True:
                # Whatever goes wrong in one, the next may be answered. A transport that closes a
                # channel tells that by CancelledError, too.
                answers = await asyncio.gather(self._transport.roll_call(), return_exceptions=True)
                called: Sequence[Manager | None] | BaseException = answers[0]
                if isinstance(called, BaseException):
                    logger.warning("no roll call: %r", called)
                else:
                    self._answer(called)
                await asyncio.sleep(ROLL_CALL_S)
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _answer(self, called: Sequence[Manager | None]) -> None:
        """Open sessions with those who are new, and end those with who is not called any more."""
        present = [manager for manager in called if manager is not None]
        for manager in present:
            if manager.id not in self._running and self._serves_the_same(manager):
                session = Session(self._transport, manager, self._opened, self._ended)
                self._running[manager.id] = asyncio.create_task(self._run(session))
        if len(present) == len(called):
            for retired in self._running.keys() - {manager.id for manager in present}:
                if retired in self._open:
                    self._is_replaced = True
                    self._open[retired].end(ManagerLeaves("the request manager is to stop"))
                self._running[retired].cancel()

    def _serves_the_same(self, manager: Manager) -> bool:
        if self._description is None and manager.configuration == self._configuration:
            self._description = manager.description
        served = self._description
        return served is not None and served.fingerprint == manager.description.fingerprint

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        except Exception:  # a supervised loop: the next roll call opens another session
            logger.exception("the session with a request manager ended by a fault")
        finally:
            del self._running[session.manager.id]

    def _opened(self, session: Session) -> None:
        self._is_replaced = False
        self._open[session.manager.id] = session
        self._changed.set()

    def _ended(self, session: Session) -> None:
        self._open.pop(session.manager.id, None)
