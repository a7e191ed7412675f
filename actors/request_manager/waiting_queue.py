"""Requests that wait, in the order in which they are to run, and how many may.

By priority, then by arrival; a request that was preempted goes back to its old place. The limits
count requests and tokens, so that neither many requests nor long ones make the wait endless.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from actors.errors import OverloadedError
from actors.request_manager.pace import Pace
from actors.request_manager.ports import Clock
from actors.request_manager.request import Request, State


class WaitingQueue:
    """Who waits.

    Args:
        max_requests: requests that may wait, beyond those for which there is a place already.
        max_tokens: their tokens; no limit for a request alone, or where all could run now.
        clock: monotonic seconds; from what has left lately those who are refused are told when to
            come again.
    """

    def __init__(self, max_requests: int, max_tokens: int, clock: Clock = time.monotonic) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._requests: list[Request] = []
        self._num_tokens = 0
        self._requests_pace = Pace(clock)
        self._tokens_pace = Pace(clock)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request.state is State.WAITING and self._place(request) is not None

    @property
    def num_tokens(self) -> int:
        """Tokens of all who wait."""
        return self._num_tokens

    @property
    def first(self) -> Request:
        """Who is next; call only if somebody waits."""
        return self._requests[0]

    def join(self, requests: Sequence[Request], num_idle_places: int) -> None:
        """Queue requests that belong together: all of them or none.

        Those that go on with an output that has begun are let in whatever the limits.

        Args:
            num_idle_places: requests that could run now.

        Raises:
            OverloadedError: there is no room.
        """
        if not any(request.asked.emitted_ids for request in requests):
            self._require_room(requests, num_idle_places)
        for request in requests:
            self.put_back(request)

    def _require_room(self, requests: Sequence[Request], num_idle_places: int) -> None:
        num_waiting = len(self) + len(requests) - num_idle_places
        if num_waiting > self._max_requests:
            wait_s = self._requests_pace.wait_s(num_waiting - self._max_requests)
            raise OverloadedError("too many requests are waiting", wait_s)
        num_tokens = self._num_tokens + sum(len(request.tokens) for request in requests)
        alone = not self._requests and len(requests) == 1
        if num_waiting > 0 and num_tokens > self._max_tokens and not alone:
            wait_s = self._tokens_pace.wait_s(num_tokens - self._max_tokens)
            raise OverloadedError("too many prompt tokens are waiting", wait_s)

    def put_back(self, request: Request) -> None:
        """Queue a request whatever the limits: it was let in before."""
        insort(self._requests, request, key=seniority)
        self._num_tokens += len(request.tokens)

    def remove(self, request: Request) -> None:
        """Take a request out; it must be in."""
        place = self._place(request)
        if place is None:
            raise ValueError(f"request {request.request_id} does not wait")
        del self._requests[place]
        self._num_tokens -= len(request.tokens)
        self._requests_pace.note(1)
        self._tokens_pace.note(len(request.tokens))

    def _place(self, request: Request) -> int | None:
        place = bisect_left(self._requests, seniority(request), key=seniority)
        if place < len(self._requests) and self._requests[place] is request:
            return place
        return None


def seniority(request: Request) -> tuple[int, int]:
    """Who runs, and keeps its KV, before others: the lower."""
    return request.asked.priority, request.request_id
