"""Spans of the manager's steps: an observer beside the metrics.

A step belongs to many requests, and a trace to one: each request whose trace is kept gets a span of
the step, with all that was done in it for the whole batch. Spans are made when the step is over,
out of its record, so that nothing of this stands in a step's way; what drafters were asked
meanwhile is remembered until then.

Assumes that drafters, manager and this read one clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from actors.request_manager.ports import Clock, StepRecord, TracedRow
from cluster import span_names as names
from cluster.tracing import TRACEPARENT, context_of

MAX_CALLS = 1024
"""Calls of drafters that are remembered: far more than are made while a step lasts."""


class DraftCall(NamedTuple):
    """A drafter was asked, by the manager's clock, for drafts of some requests."""

    drafter: str
    outcome: str
    begun_s: float
    ended_s: float
    request_ids: Collection[int]


class StepSpans:
    """Makes the spans of one manager's steps.

    Args:
        tracer: of the manager's process.
        clock: the manager's, in monotonic seconds.
        wall_clock_ns: nanoseconds since 1970.
    """

    def __init__(
        self,
        tracer: Tracer,
        clock: Clock = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._tracer = tracer
        self._clock = clock
        self._wall_clock_ns = wall_clock_ns
        self._offset_ns = 0  # from the manager's clock to the wall's
        self._calls: deque[DraftCall] = deque(maxlen=MAX_CALLS)

    def drafter_called(self, call: DraftCall) -> None:
        """A drafter has answered, or is no longer waited for."""
        self._calls.append(call)

    def step_done(self, record: StepRecord) -> None:
        """The manager is over with a step."""
        if record.traced:
            self._offset_ns = self._wall_clock_ns() - round(self._clock() * 1e9)
            for row in record.traced:
                self._write(record, row)

    def _write(self, record: StepRecord, row: TracedRow) -> None:
        phases = _phases(record)
        request = context_of({TRACEPARENT: row.traceparent})
        ended_s = max(ended_s for _, ended_s in phases.values())
        step = self._span("step", request, record.begun_s, ended_s, _of_step(record, row))
        for call in self._calls_of(row.request_id, record.begun_s):
            about = {names.DRAFTER: call.drafter, names.DRAFTER_OUTCOME: call.outcome}
            self._span(f"draft {call.drafter}", step, call.begun_s, call.ended_s, about)
        inside = {names.FORWARD_S: record.forward_s, names.SAMPLE_S: record.sample_s}
        self._span("llm", step, *phases["step"], inside)
        came_of_it = {
            names.ACCEPTED_TOKENS: row.num_accepted,
            names.COMMITTED_TOKENS: row.num_committed,
        }
        self._span("verify", step, phases["verify"][0], phases["commit"][1], came_of_it)

    def _span(
        self,
        name: str,
        parent: Context,
        begun_s: float,
        ended_s: float,
        attributes: Mapping[str, AttributeValue],
    ) -> Context:
        """Make a span that is over already; returns the context of its children."""
        begun_ns, ended_ns = (self._offset_ns + round(at_s * 1e9) for at_s in (begun_s, ended_s))
        span = self._tracer.start_span(name, parent, attributes=attributes, start_time=begun_ns)
        span.end(ended_ns)
        return set_span_in_context(span, parent)

    def _calls_of(self, request_id: int, since_s: float) -> Iterator[DraftCall]:
        """Calls for a request that began since then; the latest end first."""
        recent = takewhile(lambda call: call.ended_s >= since_s, reversed(self._calls))
        return (c for c in recent if c.begun_s >= since_s and request_id in c.request_ids)


def _phases(record: StepRecord) -> dict[str, tuple[float, float]]:
    """When each phase began and ended."""
    spans, at = {}, record.begun_s
    for phase, seconds in record.phase_s.items():
        spans[phase] = (at, at + seconds)
        at += seconds
    return spans


def _of_step(record: StepRecord, row: TracedRow) -> dict[str, AttributeValue]:
    return {
        names.STEP_ID: record.step_id,
        names.STEP_GROUP: record.group,
        names.BATCH_REQUESTS: record.num_rows,
        names.BATCH_TOKENS: record.num_tokens,
        names.RUN_TOKENS: row.num_tokens,
        names.DRAFT_NODES: row.num_draft_nodes,
        names.ACCEPTED_TOKENS: row.num_accepted,
        names.COMMITTED_TOKENS: row.num_committed,
    }
