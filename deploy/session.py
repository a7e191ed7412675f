"""The manager's end of the way between an ingress and a request manager.

An ingress opens one session. All that it asks for goes in by `exchange`, all events of its requests
leave by one stream, those of one LLM step in one message: what a message costs is paid once a step
and not once a request. A session ends with its stream, and so do its requests.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from actors.errors import PeerUnavailable, TreeServeError
from actors.request_manager.generation import GenerationRequest
from actors.request_manager.outbox import News, Outbox, Sink
from actors.request_manager.request import Request
from cluster.logs import log_event
from cluster.tracing import trace_id_in

logger = logging.getLogger(__name__)

Batch = Mapping[str, News]
"""News by request id."""

Group = Sequence[GenerationRequest]
"""Requests that are taken together or not at all."""


class Engine(Protocol):
    """The part of the manager's engine that is used here."""

    def submit(self, asked: Sequence[tuple[GenerationRequest, Sink]]) -> list[Request]: ...

    def cancel(self, request: Request) -> None: ...


class Sessions:
    """The open sessions of one manager."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[str, _Session] = {}

    async def events(self, session_id: str) -> AsyncGenerator[Batch, None]:
        """Open a session; an empty batch tells that it is open. Closing the iterator ends it."""
        session = self._open[session_id] = _Session(self._engine)
        try:
            yield {}
            async for batch in session.batches():
                yield batch
        finally:
            del self._open[session_id]
            session.end()

    def exchange(
        self, session_id: str, groups: Sequence[Group], cancelled: Sequence[str]
    ) -> list[TreeServeError | None]:
        """Submit groups, then cancel requests by their ids.

        Returns:
            For each group why it was refused, or None.

        Raises:
            PeerUnavailable: the session is not open here.
        """
        session = self._open.get(session_id)
        if session is None:
            raise PeerUnavailable("the session is not open")
        outcomes = [session.submit(group) for group in groups]
        session.cancel(cancelled)
        return outcomes

    def close(self) -> None:
        """End every session: their ingresses go elsewhere with what they know."""
        for session in self._open.values():
            session.close()


class _Session:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._outbox = Outbox()
        self._running: dict[str, Request] = {}

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """News as they come, until the session is closed."""
        while batch := await self._outbox.take():
            for request_id, news in batch.items():
                if news.is_last:
                    _log_end(request_id, self._running.pop(request_id, None), news)
            yield batch

    def submit(self, group: Group) -> TreeServeError | None:
        try:
            requests = self._engine.submit(
                [(asked, self._outbox.sink(asked.request_id)) for asked in group]
            )
        except TreeServeError as error:
            return error
        self._running.update(zip((asked.request_id for asked in group), requests, strict=True))
        return None

    def cancel(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if (request := self._running.pop(request_id, None)) is not None:
                self._engine.cancel(request)
            self._outbox.drop(request_id)

    def close(self) -> None:
        self._outbox.close()

    def end(self) -> None:
        self.cancel(list(self._running))


def _log_end(request_id: str, request: Request | None, news: News) -> None:
    reason = news.event.finish_reason if news.event else None
    stats = news.event.stats if news.event else None
    log_event(
        logger,
        "output ended",
        request_id=request_id,
        reason=type(news.error).__name__ if news.error else reason,
        num_llm_steps=stats.num_llm_steps if stats else None,
        num_accepted_draft_tokens=stats.num_accepted_draft_tokens if stats else None,
        **_trace_of(request),
    )


def _trace_of(request: Request | None) -> dict[str, str]:
    if request is None or not request.asked.traceparent:
        return {}
    return {"trace_id": trace_id_in(request.asked.traceparent)}
