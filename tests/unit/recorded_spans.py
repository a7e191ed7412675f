"""Spans that stay in memory, for tests to look at."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import Tracer, format_span_id, format_trace_id

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
KEPT, NOT_KEPT = (f"00-{TRACE_ID}-{SPAN_ID}-{flags}" for flags in ("01", "00"))
"""Places in a trace, as others send them; see W3C Trace Context."""


class RecordedSpans:
    """A tracer whose spans are kept.

    Args:
        sample: the share of traces that are.
    """

    def __init__(self, sample: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ParentBasedTraceIdRatio(sample), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = provider.get_tracer("test")

    def ended(self, name: str = "") -> list[ReadableSpan]:
        """Those that have ended, in that order; with a name, those whose name begins so."""
        spans = self._exporter.get_finished_spans()
        return [span for span in spans if span.name.startswith(name)]


def span_id(span: ReadableSpan) -> str:
    return format_span_id(span.get_span_context().span_id)


def trace_id(span: ReadableSpan) -> str:
    return format_trace_id(span.get_span_context().trace_id)


def parent_id(span: ReadableSpan) -> str | None:
    return None if span.parent is None else format_span_id(span.parent.span_id)
