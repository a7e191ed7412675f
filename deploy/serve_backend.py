"""The ingress's way to the request manager: a backend over a Ray Serve handle.

The manager's process may die under a running request. What was delivered is known here, so the
request is submitted again with it: sampling goes by seed and position, and the text goes on as it
would have. Ray itself is reached only through what is handed in.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from actors.errors import PeerUnavailable, TreeServeError
from actors.request_manager.generation import GenerationEvent, GenerationRequest
from deploy.backend import BackendDescription

logger = logging.getLogger(__name__)

MAX_SUBMISSIONS = 3


class EventStream(Protocol):
    """A streaming call of a Serve handle."""

    def __aiter__(self) -> AsyncIterator[GenerationEvent]: ...

    def cancel(self) -> None:
        """End the call; does nothing if it is over."""


class ServeBackend:
    """Implements `backend.Backend`.

    Args:
        description: what the manager serves.
        submit: begins a streaming call.
        metrics: asks the manager for its metrics.
        foreign: the exceptions of the transport.
        map_error: one of ours for one of them.
    """

    def __init__(
        self,
        description: BackendDescription,
        submit: Callable[[GenerationRequest], EventStream],
        metrics: Callable[[], Any],
        foreign: tuple[type[Exception], ...],
        map_error: Callable[[Exception], TreeServeError],
    ) -> None:
        self.description = description
        self._submit = submit
        self._metrics = metrics
        self._foreign = foreign
        self._map_error = map_error

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Events of one request, over the death of a manager if need be; see `Backend`."""
        for submission in range(1, MAX_SUBMISSIONS + 1):
            ended = False
            try:
                async with aclosing(self._events(request)) as events:
                    async for event in events:
                        request = _continued(request, event)
                        ended = event.finish_reason is not None
                        yield event
            except PeerUnavailable as error:
                if ended:
                    return  # lost after all had been delivered
                if submission == MAX_SUBMISSIONS or request.internal:
                    raise
                logger.warning("submitting a request again: %s", error)
            else:
                return

    async def metrics_text(self) -> str:
        try:
            return str(await self._metrics())
        except self._foreign as error:
            raise self._map_error(error) from error

    async def _events(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        stream = self._submit(request)
        try:
            async for event in stream:
                yield event
        except self._foreign as error:
            raise self._map_error(error) from error
        finally:
            stream.cancel()


def _continued(request: GenerationRequest, event: GenerationEvent) -> GenerationRequest:
    """The request as it is to be submitted again after this event was delivered."""
    return replace(
        request,
        emitted_ids=request.emitted_ids + event.token_ids,
        prompt_logprobs=None if event.prompt_logprobs else request.prompt_logprobs,
    )
