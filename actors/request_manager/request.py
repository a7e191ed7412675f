"""A request inside the manager: its tokens, its state, and the way its events go out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from enum import Enum

from actors.errors import TreeServeError
from actors.request_manager.commit import OutputState
from actors.request_manager.generation import (
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    SpeculationStats,
)


class State(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    CLOSING = "closing"
    FINISHED = "finished"


LEGAL_MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILL, State.FINISHED}),
    State.PREFILL: frozenset({State.DECODE, State.PREEMPTED, State.CLOSING, State.FINISHED}),
    State.DECODE: frozenset({State.PREEMPTED, State.CLOSING, State.FINISHED}),
    State.PREEMPTED: frozenset({State.WAITING}),
    State.CLOSING: frozenset({State.FINISHED}),
    State.FINISHED: frozenset(),
}
"""CLOSING is "cancelled while a step is in flight": blocks are kept until its result is back."""


class EventSink:
    """Hands events from the loop to one reader; events that the reader is late for are merged."""

    def __init__(self) -> None:
        self._pending: GenerationEvent | None = None
        self._error: TreeServeError | None = None
        self._ready = asyncio.Event()

    def put(self, event: GenerationEvent) -> None:
        self._pending = self._pending.merged(event) if self._pending else event
        self._ready.set()

    def fail(self, error: TreeServeError) -> None:
        """What was put before is still delivered; then the reader gets `error`."""
        self._error = error
        self._ready.set()

    async def __aiter__(self) -> AsyncIterator[GenerationEvent]:
        while True:
            await self._ready.wait()
            self._ready.clear()
            event, self._pending = self._pending, None
            if event is not None:
                yield event
                if event.finish_reason is not None:
                    return
            if self._error is not None:
                raise self._error


class Request:
    """One running request.

    Attributes:
        request_id: the manager's number for it; the ranks know it by this.
        tokens: prompt and output so far; the last one is the root of the next step.
        known_to_ranks: the ranks have had its `NewRequest` in this epoch.
        in_flight: a step that carries it is on its way.
        num_failures: steps lost while they carried it.
    """

    def __init__(
        self, request_id: int, asked: GenerationRequest, output: OutputState, arrival_s: float
    ) -> None:
        self.request_id = request_id
        self.asked = asked
        self.output = output
        self.arrival_s = arrival_s
        self.tokens: list[int] = [*asked.prompt_ids, *asked.emitted_ids]
        self.prompt_len = len(asked.prompt_ids)
        self.state = State.WAITING
        self.sink = EventSink()
        self.stats = SpeculationStats()
        self.group = 0
        self.first_token_s: float | None = None
        self.known_to_ranks = False
        self.in_flight = False
        self.num_failures = 0

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def max_total_tokens(self) -> int:
        """Tokens at the end of the longest output that was asked for."""
        return self.prompt_len + self.asked.stop.max_tokens

    def transition(self, state: State) -> None:
        """Move to another state.

        Raises:
            AssertionError: if the move is not in `LEGAL_MOVES`.
        """
        if state not in LEGAL_MOVES[self.state]:
            raise AssertionError(f"request {self.request_id}: {self.state.name} → {state.name}")
        self.state = state

    def preempt(self) -> None:
        """Give up the KV; the request will be prefilled again from its tokens."""
        self.transition(State.PREEMPTED)
        self.transition(State.WAITING)
        self.known_to_ranks = False
        self.in_flight = False

    def finish(self, reason: FinishReason) -> None:
        """Enter FINISHED; the last event is the caller's to put."""
        self.transition(State.FINISHED)
        self.finish_reason = reason
