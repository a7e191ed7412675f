"""Spans that are over when they are made, by the hundred a second.

The SDK's own way begins a span, asks the sampler, copies and checks what it is given, and ends it:
four times the work. Here its parent's trace is kept already, and what it says is right and stays as
it is. Loads the SDK: import this only where something is traced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.sdk.trace import ReadableSpan, Tracer
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext
from opentelemetry.util.types import AttributeValue

SCOPE = InstrumentationScope("treeserve")


class EndedSpans:
    """Makes them.

    Args:
        tracer: whose resource they have, and to whose exporters they go.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._resource = tracer.resource
        self._processor = tracer.span_processor
        self._new_id = tracer.id_generator.generate_span_id

    def add(
        self,
        name: str,
        parent: SpanContext,
        begun_ns: int,
        ended_ns: int,
        attributes: Mapping[str, AttributeValue],
        links: Sequence[Link] = (),
    ) -> SpanContext:
        """Make one; returns its place, below which others can be.

        Args:
            parent: of a trace that is kept.
            begun_ns, ended_ns: since 1970.
            attributes: not changed any more.
        """
        place = SpanContext(
            parent.trace_id, self._new_id(), False, parent.trace_flags, parent.trace_state
        )
        span = ReadableSpan(
            name,
            place,
            parent,
            self._resource,
            attributes,
            links=links,
            start_time=begun_ns,
            end_time=ended_ns,
            instrumentation_scope=SCOPE,
        )
        self._processor.on_end(span)
        return place
