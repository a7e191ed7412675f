"""Spans of the manager's steps: an observer beside the metrics.

A step belongs to many requests, and a trace to one: each request whose trace is kept gets a span of
the step, with what the step was to it. What was done for the whole batch is told once, below the
span of the first of them, to which the others' spans are linked: spans cost more than what they
tell of, and most requests that are traced are so alone. Spans are made when the step is over, out
of its record; what drafters were asked meanwhile is remembered until then.

Assumes that drafters, manager and this read one clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, cast

from opentelemetry.trace import Link, SpanContext, Tracer, get_current_span
from opentelemetry.util.types import AttributeValue

from actors.request_manager.ports import Clock, StepRecord, TracedRow
from cluster import span_names as names
from cluster.tracing import TRACEPARENT, context_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Tracer as SDKTracer

MAX_CALLS = 1024
"""Calls of drafters that are remembered: far more than are made while a step lasts."""
MAX_REQUESTS = 1024
"""Requests whose places in their traces are remembered."""


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
        tracer: the SDK's, of the manager's process.
        clock: the manager's, in monotonic seconds.
        wall_clock_ns: nanoseconds since 1970.
    """

    def __init__(
        self,
        tracer: Tracer,
        clock: Clock = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        from cluster.ended_spans import EndedSpans

        self._spans = EndedSpans(cast("SDKTracer", tracer))
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
            self._write(record)

    def _write(self, record: StepRecord) -> None:
        phases = _phases(record)
        ended_s = max(ended_s for _, ended_s in phases.values())
        links: list[Link] = []
        for row in record.traced:
            request = _place_in(row.traceparent)
            if not request.trace_flags.sampled:
                continue
            more = _of_row(record, row)
            if not links:
                more |= _of_batch(record)
            step = self._span("step", request, record.begun_s, ended_s, more, links)
            if not links:
                links = [Link(step)]
                self._write_batch(record, phases, step)

    def _write_batch(
        self, record: StepRecord, phases: Mapping[str, tuple[float, float]], step: SpanContext
    ) -> None:
        """What was done for all requests of the batch."""
        traced = {row.request_id for row in record.traced}
        for call in self._calls_for(traced, record.begun_s):
            about = {names.DRAFTER: call.drafter, names.DRAFTER_OUTCOME: call.outcome}
            self._span(f"draft {call.drafter}", step, call.begun_s, call.ended_s, about)
        inside = {names.FORWARD_S: record.forward_s, names.SAMPLE_S: record.sample_s}
        self._span("llm", step, *phases["step"], inside)
        came_of_it = {names.BATCH_COMMITTED: record.num_committed}
        self._span("verify", step, phases["verify"][0], phases["commit"][1], came_of_it)

    def _span(
        self,
        name: str,
        parent: SpanContext,
        begun_s: float,
        ended_s: float,
        attributes: Mapping[str, AttributeValue],
        links: Sequence[Link] = (),
    ) -> SpanContext:
        """Make a span that is over already."""
        begun_ns, ended_ns = (self._offset_ns + round(at_s * 1e9) for at_s in (begun_s, ended_s))
        return self._spans.add(name, parent, begun_ns, ended_ns, attributes, links)

    def _calls_for(self, request_ids: Set[int], since_s: float) -> Iterator[DraftCall]:
        """Calls for any of the requests that began since then; the latest end first."""
        recent = takewhile(lambda call: call.ended_s >= since_s, reversed(self._calls))
        return (
            c for c in recent if c.begun_s >= since_s and not request_ids.isdisjoint(c.request_ids)
        )


@lru_cache(MAX_REQUESTS)
def _place_in(traceparent: str) -> SpanContext:
    return get_current_span(context_of({TRACEPARENT: traceparent})).get_span_context()


def _phases(record: StepRecord) -> dict[str, tuple[float, float]]:
    """When each phase began and ended."""
    spans, at = {}, record.begun_s
    for phase, seconds in record.phase_s.items():
        spans[phase] = (at, at + seconds)
        at += seconds
    return spans


def _of_batch(record: StepRecord) -> dict[str, AttributeValue]:
    return {
        names.STEP_GROUP: record.group,
        names.BATCH_REQUESTS: record.num_rows,
        names.BATCH_TOKENS: record.num_tokens,
    }


def _of_row(record: StepRecord, row: TracedRow) -> dict[str, AttributeValue]:
    return {
        names.STEP_ID: record.step_id,
        names.RUN_TOKENS: row.num_tokens,
        names.DRAFT_NODES: row.num_draft_nodes,
        names.ACCEPTED_TOKENS: row.num_accepted,
        names.COMMITTED_TOKENS: row.num_committed,
    }
