"""Events of requests on their way to one reader; what the reader is late for is merged.

So a slow reader costs at most the memory of the outputs themselves, and one that reads after a
step of the LLM gets all that the step brought in one go. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from actors.errors import TreeServeError
from actors.request_manager.generation import GenerationEvent


class Sink(Protocol):
    """Where the events of one request go."""

    def put(self, event: GenerationEvent) -> None:
        """Something was generated."""

    def fail(self, error: TreeServeError) -> None:
        """The request is over by this error; nothing comes after."""


@dataclass(frozen=True)
class News:
    """What happened to a request since its reader last looked; the error, if any, comes last."""

    event: GenerationEvent | None = None
    error: TreeServeError | None = None

    @property
    def is_last(self) -> bool:
        """True if the request is over."""
        ended = self.event is not None and self.event.finish_reason is not None
        return ended or self.error is not None

    def followed_by(self, later: News) -> News:
        """This and what came after it, as one."""
        if self.event is None or later.event is None:
            return News(self.event or later.event, self.error or later.error)
        return News(self.event.merged(later.event), later.error)


class Outbox:
    """News of many requests, by their ids."""

    def __init__(self) -> None:
        self._news: dict[str, News] = {}
        self._ready = asyncio.Event()
        self._is_closed = False

    def sink(self, request_id: str) -> Sink:
        """Where the events of one request go in."""
        return _Slot(self, request_id)

    def put(self, request_id: str, news: News) -> None:
        before = self._news.get(request_id)
        self._news[request_id] = news if before is None else before.followed_by(news)
        self._ready.set()

    def drop(self, request_id: str) -> None:
        """Nobody wants to hear of this request any more."""
        self._news.pop(request_id, None)

    def close(self) -> None:
        """Nothing more will be told."""
        self._is_closed = True
        self._ready.set()

    async def take(self) -> dict[str, News]:
        """Everything that there is to tell; waits until there is something, or the end: {}."""
        while not (self._news or self._is_closed):
            self._ready.clear()
            await self._ready.wait()
        news, self._news = self._news, {}
        return news


class _Slot:
    """One request's way into an outbox."""

    def __init__(self, outbox: Outbox, request_id: str) -> None:
        self._outbox = outbox
        self._request_id = request_id

    def put(self, event: GenerationEvent) -> None:
        self._outbox.put(self._request_id, News(event))

    def fail(self, error: TreeServeError) -> None:
        self._outbox.put(self._request_id, News(error=error))
