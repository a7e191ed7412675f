"""Tracing: where the spans of this process go (OpenTelemetry, OTLP over HTTP).

Off by default; then no SDK is loaded, nothing is wrapped and no thread runs. The provider is our
own, not the process's global one, so nobody else's spans get in. Spans leave in batches from a
thread of the SDK's; a collector that is away costs spans and never an answer. What else can be set
is set by the SDK's own environment variables (`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_BSP_*`, …).

Spans hold names, counts and times; never text or tokens of prompts and outputs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.trace import Span, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import BaseModel, ConfigDict, Field, field_validator

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

EXPORT_TIMEOUT_S = 5.0
LAST_SPANS_S = 2.0
"""For the spans that have not left yet when a process stops."""

TRACEPARENT = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()


class TracingConfig(BaseModel):
    """The `tracing` section of the configuration.

    Attributes:
        endpoint: an OpenTelemetry collector's address for OTLP over HTTP, to which `/v1/traces` is
            added; None for no tracing.
        sample: the share of requests that are traced, in [0, 1]. A request with a `traceparent`
            goes by what that says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str | None = None
    sample: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.01

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("an http or https address is wanted, such as http://127.0.0.1:4318")
        if parts.query or parts.fragment or parts.path.rstrip("/").endswith("/v1/traces"):
            raise ValueError("the collector's address alone is wanted: /v1/traces is added to it")
        return value


class Tracing:
    """The spans of one process.

    Args:
        provider: where they go.

    Attributes:
        tracer: makes them.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self.tracer: Tracer = provider.get_tracer("treeserve")

    async def close(self) -> None:
        """Send what has not left yet, as far as that is quick; does nothing the second time."""
        try:
            async with asyncio.timeout(LAST_SPANS_S):
                await asyncio.to_thread(self._provider.shutdown)
        except TimeoutError:
            return


def open_tracing(config: TracingConfig, part: str) -> Tracing | None:
    """Begin to send spans; None if there is to be no tracing.

    Args:
        part: what the process is.
    """
    if config.endpoint is None:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    address = config.endpoint.rstrip("/") + "/v1/traces"
    exporter = OTLPSpanExporter(endpoint=address, timeout=EXPORT_TIMEOUT_S)
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(config.sample),
        resource=Resource.create({"service.name": f"treeserve-{part}"}),
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


def context_of(carrier: Mapping[str, str]) -> Context:
    """The context that `traceparent` (and `tracestate`) in headers name; an empty one without."""
    return _PROPAGATOR.extract(carrier)


def traceparent_of(span: Span) -> str:
    """A span's place in its trace, for those who go on with it elsewhere."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span))
    return carrier.get(TRACEPARENT, "")


def trace_id_in(traceparent: str) -> str:
    """The id of the trace, as log lines have it, in what `traceparent_of` gives."""
    return traceparent.split("-")[1]
