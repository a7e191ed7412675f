"""Plays a plan: the open loop by its schedule, the closed loop by its users.

The clock is the event loop's own, so a test can run it on virtual time. Stopped half way, it keeps
the record of every request that was begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Protocol

from loadtest.plan import Message, PlannedRequest, Session
from loadtest.records import Outcome, RequestRecord


class Send(Protocol):
    """Sends one request; see `client.Client.send`."""

    def __call__(
        self, planned: PlannedRequest, history: Sequence[Message], record: RequestRecord, /
    ) -> Awaitable[None]: ...


class Driver:
    """Plays one plan, once.

    Args:
        send: how a request is sent.
        max_open: requests open at once; more wait, and what they wait counts in the latency from
            the schedule, not as lag of the harness. None for no limit.
    """

    def __init__(self, send: Send, max_open: int | None = None) -> None:
        self._send = send
        self._slots = None if max_open is None else asyncio.Semaphore(max_open)
        self._tasks: set[asyncio.Task[None]] = set()
        self._issuing: asyncio.Task[None] | None = None
        self._bug: BaseException | None = None
        self.records: list[RequestRecord] = []
        self.num_open = 0
        self.stopped = False

    async def open_loop(self, sessions: Iterable[Session]) -> None:
        """Begin each session when it is due, and wait for all answers."""
        await self._run(self._issue(sessions))

    async def closed_loop(
        self, sessions: Sequence[Session], num_users: int, duration_s: float | None
    ) -> None:
        """Users who each begin the next session when their last has ended."""
        await self._run(self._be_users(iter(sessions), num_users, duration_s))

    def stop(self) -> None:
        """Begin nothing more, and break off what is open."""
        self.stopped = True
        if self._issuing is not None:
            self._issuing.cancel()
        for task in self._tasks:
            task.cancel()

    async def _run(self, issuing: Coroutine[Any, Any, None]) -> None:
        if self.stopped:  # before it began
            issuing.close()
            return
        self._issuing = asyncio.create_task(issuing)
        await asyncio.wait([self._issuing])
        while self._tasks:
            await asyncio.wait(self._tasks)
        if not self._issuing.cancelled():
            self._issuing.result()
        if self._bug is not None:
            raise self._bug

    async def _issue(self, sessions: Iterable[Session]) -> None:
        origin_s = _now_s()
        for session in sessions:
            due_s = origin_s + (session.at_s or 0.0)
            await _sleep_until(due_s)
            self._start(self._play(session, due_s))

    async def _be_users(
        self, sessions: Iterator[Session], num_users: int, duration_s: float | None
    ) -> None:
        end_s = float("inf") if duration_s is None else _now_s() + duration_s
        for _ in range(num_users):
            self._start(self._be_user(sessions, end_s))

    async def _be_user(self, sessions: Iterator[Session], end_s: float) -> None:
        while _now_s() < end_s and (session := next(sessions, None)) is not None:
            await self._play(session, _now_s())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and self._bug is None:
            self._bug = task.exception()

    async def _play(self, session: Session, due_s: float) -> None:
        history: list[Message] = []
        for planned in session.requests:
            if planned.turn:
                due_s = _now_s() + planned.think_s
                await _sleep_until(due_s)
            record = RequestRecord(planned.index, planned.turn, due_s, due_s)
            self.records.append(record)
            await self._send_when_free(planned, history, record)
            if record.outcome is not Outcome.OK:
                return
            history += [*planned.messages, {"role": "assistant", "content": record.text}]

    async def _send_when_free(
        self, planned: PlannedRequest, history: Sequence[Message], record: RequestRecord
    ) -> None:
        if self._slots is not None:
            must_wait = self._slots.locked()
            await self._slots.acquire()
            if must_wait:
                record.released_s = _now_s()
        self.num_open += 1
        try:
            await self._send(planned, history, record)
        finally:
            self.num_open -= 1
            if self._slots is not None:
                self._slots.release()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _sleep_until(due_s: float) -> None:
    pause_s = due_s - _now_s()
    if pause_s > 0:
        await asyncio.sleep(pause_s)
