"""A span for each output of a traced request, in the manager: from its arrival there to its end.

A wrapper around the engine, which does not know of it. Steps hang their spans below these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opentelemetry.trace import Span, Status, StatusCode, Tracer

from actors.errors import TreeServeError
from actors.request_manager.generation import GenerationEvent, GenerationRequest
from actors.request_manager.outbox import Sink
from actors.request_manager.request import Request
from cluster import span_names as names
from cluster.tracing import TRACEPARENT, context_of, traceparent_of
from deploy.session import Engine


class TracedEngine:
    """Implements `session.Engine` around one."""

    def __init__(self, engine: Engine, tracer: Tracer) -> None:
        self._engine = engine
        self._tracer = tracer

    def submit(self, asked: Sequence[tuple[GenerationRequest, Sink]]) -> list[Request]:
        begun = [self._begin(request, sink) for request, sink in asked]
        try:
            return self._engine.submit(begun)
        except TreeServeError as error:
            for _, sink in begun:
                if isinstance(sink, _Output):
                    sink.end_with(error)
            raise

    def cancel(self, request: Request) -> None:
        self._engine.cancel(request)

    def _begin(self, asked: GenerationRequest, sink: Sink) -> tuple[GenerationRequest, Sink]:
        if not asked.traceparent:
            return asked, sink
        parent = context_of({TRACEPARENT: asked.traceparent})
        span = self._tracer.start_span("output", parent)
        span.set_attribute(names.REQUEST_ID, asked.request_id)
        span.set_attribute(names.INPUT_TOKENS, len(asked.prompt_ids))
        return replace(asked, traceparent=traceparent_of(span)), _Output(span, sink)


class _Output:
    """Implements `outbox.Sink` around one."""

    def __init__(self, span: Span, sink: Sink) -> None:
        self._span = span
        self._sink = sink
        self._num_tokens = 0

    def put(self, event: GenerationEvent) -> None:
        self._sink.put(event)
        if event.token_ids and not self._num_tokens:
            self._span.add_event(names.FIRST_TOKEN)
        self._num_tokens += len(event.token_ids)
        if event.finish_reason is not None:
            self._end(event)

    def fail(self, error: TreeServeError) -> None:
        self._sink.fail(error)
        self.end_with(error)

    def end_with(self, error: TreeServeError) -> None:
        """There is no output, or no more of it."""
        self._span.set_attribute(names.ERROR_TYPE, type(error).__name__)
        self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()

    def _end(self, last: GenerationEvent) -> None:
        self._span.set_attribute(names.OUTPUT_TOKENS, self._num_tokens)
        if last.finish_reason is not None:
            self._span.set_attribute(names.FINISH_REASONS, [last.finish_reason.value])
        if (stats := last.stats) is not None:
            self._span.set_attributes(
                {
                    names.CACHED_TOKENS: stats.num_cached_tokens,
                    names.LLM_STEPS: stats.num_llm_steps,
                    names.DRAFT_NODES: stats.num_draft_tokens,
                    names.ACCEPTED_TOKENS: stats.num_accepted_draft_tokens,
                }
            )
        self._span.end()
