"""Spans of the manager's steps: an observer beside the metrics.

A step belongs to many requests, and a trace to one: each request whose trace is kept gets a span of
the step. What was done in it for all of them, by drafters, LLM and verification, is told once, in
the trace of the first; the others' spans of the step link there. Spans are made when the step is
over, out of its record; what drafters were asked meanwhile is remembered until then.

Assumes that drafters, manager and this read one clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
"""Requests whose place in their traces is remembered."""

_Phases = Mapping[str, tuple[float, float]]
"""When each phase of a step began and ended."""


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
            first, *others = record.traced
            phases = _phases(record)
            ended_s = max(ended_s for _, ended_s in phases.values())
            place = _request_of(first.traceparent)
            about = _of_row(record, first) | _of_step(record)
            told = self._span("step", place, record.begun_s, ended_s, about)
            self._inside(record, phases, told)
            links = (Link(told),)
            for row in others:
                place, about = _request_of(row.traceparent), _of_row(record, row)
                self._span("step", place, record.begun_s, ended_s, about, links)

    def _inside(self, record: StepRecord, phases: _Phases, step: SpanContext) -> None:
        """The spans below one: what was done for all requests that are traced."""
        ids = {row.request_id for row in record.traced}
        for call in self._calls_of(ids, record.begun_s):
            about = {names.DRAFTER: call.drafter, names.DRAFTER_OUTCOME: call.outcome}
            self._span(f"draft {call.drafter}", step, call.begun_s, call.ended_s, about)
        parts_s = {names.FORWARD_S: record.forward_s, names.SAMPLE_S: record.sample_s}
        self._span("llm", step, *phases["step"], parts_s)
        came_of_it = {
            names.ACCEPTED_TOKENS: sum(row.num_accepted for row in record.traced),
            names.COMMITTED_TOKENS: sum(row.num_committed for row in record.traced),
        }
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
        """Make a span that is over already; returns its place."""
        begun_ns, ended_ns = (self._offset_ns + round(at_s * 1e9) for at_s in (begun_s, ended_s))
        return self._spans.add(name, parent, begun_ns, ended_ns, attributes, links)

    def _calls_of(self, request_ids: Collection[int], since_s: float) -> Iterator[DraftCall]:
        """Calls for any of the requests that began since then; the latest end first."""
        recent = takewhile(lambda call: call.ended_s >= since_s, reversed(self._calls))
        for call in recent:
            if call.begun_s >= since_s and any(one in call.request_ids for one in request_ids):
                yield call


@lru_cache(maxsize=MAX_REQUESTS)
def _request_of(traceparent: str) -> SpanContext:
    """Where a request's steps belong: the same in all of them."""
    return get_current_span(context_of({TRACEPARENT: traceparent})).get_span_context()


def _phases(record: StepRecord) -> _Phases:
    spans, at = {}, record.begun_s
    for phase, seconds in record.phase_s.items():
        spans[phase] = (at, at + seconds)
        at += seconds
    return spans


def _of_step(record: StepRecord) -> dict[str, AttributeValue]:
    """What a step did for all of its requests."""
    return {
        names.STEP_GROUP: record.group,
        names.BATCH_REQUESTS: record.num_rows,
        names.BATCH_TOKENS: record.num_tokens,
    }


def _of_row(record: StepRecord, row: TracedRow) -> dict[str, AttributeValue]:
    """What a step did for one request."""
    return {
        names.STEP_ID: record.step_id,
        names.RUN_TOKENS: row.num_tokens,
        names.DRAFT_NODES: row.num_draft_nodes,
        names.ACCEPTED_TOKENS: row.num_accepted,
        names.COMMITTED_TOKENS: row.num_committed,
    }
