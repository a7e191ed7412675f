"""The ingress's backend: request managers at the other end of a link, over their deaths.

A manager's process may die, or be replaced, under a running request. What was delivered is known
here, so the request is submitted again with it, to whichever manager there is: sampling goes by
seed and position, and the text goes on as it would have. How often, and how long a new manager is
waited for, is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from actors.errors import ExpiredError, PeerUnavailable, TreeServeError, UnavailableError
from actors.request_manager.generation import GenerationEvent, GenerationRequest
from actors.request_manager.outbox import News, Outbox
from cluster.metric_texts import merged
from cluster.metrics_server import Target
from deploy.backend import BackendDescription
from deploy.manager_link import ManagerLeaves, ManagerLink

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)

MAX_SUBMISSIONS = 3
"""A request that gets no token in this many submissions is given up: it may be what kills."""

ASK_TIMEOUT_S = 10.0

ALL = ""
"""No request's id: news under it are of all requests of a group."""


class ServeBackend:
    """Implements `backend.Backend`.

    Args:
        description: what the managers serve.
        link: the way to them.
        metrics, targets: ask a manager, by its id, for its metrics, and for the addresses of all of
            its processes.
        foreign: the exceptions of the transport.
        map_error: one of ours for one of them.
        request_timeout_s: outputs that are not complete by then are given up; None for never.
        restart_timeout_s: how long requests that run wait for a new manager, and those that come
            while the only one is being replaced; those that come after it has died are refused at
            once.
    """

    def __init__(
        self,
        description: BackendDescription,
        link: ManagerLink,
        metrics: Callable[[str], Awaitable[str]],
        targets: Callable[[str], Awaitable[Sequence[Target]]],
        foreign: tuple[type[Exception], ...],
        map_error: Callable[[Exception], TreeServeError],
        request_timeout_s: float | None,
        restart_timeout_s: float,
    ) -> None:
        self.description = description
        self._link = link
        self._metrics = metrics
        self._targets = targets
        self._foreign = foreign
        self._map_error = map_error
        self._request_timeout_s = request_timeout_s
        self._restart_timeout_s = restart_timeout_s

    async def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
        """Events of requests that belong together, with their places; see `Backend`."""
        left = {
            request.request_id: _Progress(place, request) for place, request in enumerate(requests)
        }
        outbox = Outbox()
        expiry = self._expiry(outbox)
        try:
            async with aclosing(self._events(left, outbox)) as events:
                async for place, event in events:
                    yield place, event
        finally:
            if expiry is not None:
                expiry.cancel()

    async def _events(
        self, left: dict[str, _Progress], outbox: Outbox
    ) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
        """Events with their places; keeps account in `left` of what is still to be generated."""
        num_lost = 0
        while left:
            asked = [progress.remaining() for progress in left.values()]
            is_replaced = self._link.is_being_replaced and not asked[0].internal
            may_wait = num_lost > 0 or is_replaced
            session = await self._link.session(self._restart_timeout_s if may_wait else 0.0)
            try:
                await session.submit(asked, outbox)
                while left:
                    for request_id, news in (await outbox.take()).items():
                        if (event := news.event) is not None:
                            num_lost = 0
                            progress = left[request_id]
                            progress.note(event)
                            if event.finish_reason is not None:
                                del left[request_id]
                            yield progress.place, event
                        if news.error is not None and (request_id in left or request_id == ALL):
                            raise news.error
            except PeerUnavailable as error:
                num_lost += not isinstance(error, ManagerLeaves)
                if num_lost == MAX_SUBMISSIONS or asked[0].internal:
                    raise
                logger.warning("submitting a request again: %s", error)
                for request_id in left:
                    outbox.drop(request_id)
            finally:
                session.cancel(request.request_id for request in asked)

    def _expiry(self, outbox: Outbox) -> asyncio.TimerHandle | None:
        """Tells the reader of `outbox` when time is up."""
        if self._request_timeout_s is None:
            return None
        late = ExpiredError(f"the answer took longer than {self._request_timeout_s:g} s")
        loop = asyncio.get_running_loop()
        return loop.call_later(self._request_timeout_s, outbox.put, ALL, News(error=late))

    async def metrics_text(self) -> str:
        return merged(await self._ask(self._metrics))

    async def targets(self) -> Sequence[Target]:
        answers = await self._ask(self._targets)
        return [target for targets in answers.values() for target in targets]

    async def _ask(self, question: Callable[[str], Awaitable[Answer]]) -> dict[str, Answer]:
        """The answers of all managers, by their ids."""
        await self._link.session(0.0)  # else Serve would wait for the next manager
        ids = sorted(manager.id for manager in self._link.managers)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return dict(zip(ids, await asyncio.gather(*map(question, ids)), strict=True))
        except TimeoutError:
            raise UnavailableError("a request manager does not answer") from None
        except self._foreign as error:
            raise self._map_error(error) from error


@dataclass
class _Progress:
    """A request, its place in the answer, and what has been delivered of it."""

    place: int
    request: GenerationRequest
    token_ids: list[int] = field(default_factory=list)
    has_prompt_logprobs: bool = False

    def note(self, event: GenerationEvent) -> None:
        self.token_ids += event.token_ids
        self.has_prompt_logprobs |= bool(event.prompt_logprobs)

    def remaining(self) -> GenerationRequest:
        """The request as it is to be submitted now."""
        asked = self.request
        return replace(
            asked,
            emitted_ids=(*asked.emitted_ids, *self.token_ids),
            prompt_logprobs=None if self.has_prompt_logprobs else asked.prompt_logprobs,
        )
