"""A span for each request for generation that is traced, from its arrival to its last byte.

Two wrappers with the faces of what they wrap: one around the HTTP application begins and ends the
span; one around the backend tells it what was asked and what came, and sends its place in the trace
on with the request. Whether a request is traced goes by its `traceparent` if it has one, else by
lot.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    use_span,
)
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.request_manager.generation import FinishReason, GenerationEvent, GenerationRequest
from cluster import span_names as names
from cluster.logs import trace_id
from cluster.metrics_server import Target
from cluster.tracing import context_of, trace_id_in, traceparent_of
from deploy.backend import Backend, BackendDescription
from deploy.http_errors import CLIENT_CLOSED_REQUEST
from deploy.http_metrics import WatchedSend, is_generation
from deploy.request_log import RESPONSE_ID
from deploy.streaming import BROKEN

OPERATIONS = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat"}
PROVIDER = "treeserve"


class TracedRequests:
    """An ASGI application, traced; around all that counts and logs requests.

    Args:
        model_name: what is served.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer, model_name: str) -> None:
        self._app = app
        self._tracer = tracer
        self._model_name = model_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        span = self._begin(scope) if is_generation(scope) else None
        if span is None or not span.is_recording():
            await self._app(scope, receive, send)
            return
        watched = WatchedSend(send)
        state = scope.setdefault("state", {})
        has_failed = True
        of_task = trace_id.set(trace_id_in(traceparent_of(span)))
        try:
            # Exceptions are not recorded: nobody knows what stands in their messages.
            with use_span(span, record_exception=False, set_status_on_exception=False):
                await self._app(scope, receive, watched)
            has_failed = BROKEN in state
        finally:
            trace_id.reset(of_task)
            if RESPONSE_ID in state:
                span.set_attribute(names.RESPONSE_ID, state[RESPONSE_ID])
            _end(span, watched, has_failed)

    def _begin(self, scope: Scope) -> Span:
        operation = OPERATIONS[scope["path"]]
        return self._tracer.start_span(
            f"{operation} {self._model_name}",
            context_of(Headers(scope=scope)),
            SpanKind.SERVER,
            {
                names.OPERATION: operation,
                names.PROVIDER: PROVIDER,
                names.REQUEST_MODEL: self._model_name,
                names.HTTP_METHOD: scope["method"],
                names.HTTP_ROUTE: scope["path"],
                names.URL_PATH: scope["path"],
                names.URL_SCHEME: scope["scheme"],
            },
        )


def _end(span: Span, watched: WatchedSend, has_failed: bool) -> None:
    """Tell how a request ended: mistakes of clients are no errors of ours."""
    if watched.status is not None:
        span.set_attribute(names.HTTP_STATUS, watched.status)
    status = watched.status or 500
    if has_failed or (watched.is_complete and status >= 500):
        span.set_attribute(names.ERROR_TYPE, str(status) if status >= 500 else BROKEN)
        span.set_status(Status(StatusCode.ERROR))
    elif not watched.is_complete or status == CLIENT_CLOSED_REQUEST:
        span.set_attribute(names.ERROR_TYPE, "client_disconnected")
    span.end()


class TracedBackend:
    """Implements `backend.Backend` around one; what belongs to no traced request is passed on."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def description(self) -> BackendDescription:
        return self._backend.description

    async def metrics_text(self) -> str:
        return await self._backend.metrics_text()

    async def targets(self) -> Sequence[Target]:
        return await self._backend.targets()

    def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
        span = get_current_span()
        if not span.is_recording():
            return self._backend.generate(requests)
        return self._traced(requests, span)

    async def _traced(
        self, requests: Sequence[GenerationRequest], span: Span
    ) -> AsyncGenerator[tuple[int, GenerationEvent], None]:
        span.set_attributes(_of_requests(requests))
        traceparent = traceparent_of(span)
        traced = [replace(request, traceparent=traceparent) for request in requests]
        answer = _Answer(span)
        try:
            async with aclosing(self._backend.generate(traced)) as events:
                async for place, event in events:
                    answer.note(place, event)
                    yield place, event
        finally:
            answer.close(self.description.model_name)


class _Answer:
    """What has come of an answer so far."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._num_tokens = 0
        self._finish_reasons: dict[int, FinishReason] = {}

    def note(self, place: int, event: GenerationEvent) -> None:
        if event.token_ids and not self._num_tokens:
            self._span.add_event(names.FIRST_TOKEN)
        self._num_tokens += len(event.token_ids)
        if event.finish_reason is not None:
            self._finish_reasons[place] = event.finish_reason

    def close(self, model_name: str) -> None:
        reasons = [reason.value for _, reason in sorted(self._finish_reasons.items())]
        self._span.set_attribute(names.RESPONSE_MODEL, model_name)
        self._span.set_attribute(names.OUTPUT_TOKENS, self._num_tokens)
        self._span.set_attribute(names.FINISH_REASONS, reasons)


def _of_requests(requests: Sequence[GenerationRequest]) -> dict[str, int | float]:
    """What was asked; a prompt counts once, however many choices it has."""
    first = requests[0]
    prompts = {id(request.prompt_ids): len(request.prompt_ids) for request in requests}
    return {
        names.CHOICE_COUNT: len(requests),
        names.MAX_TOKENS: first.stop.max_tokens,
        names.TEMPERATURE: first.sampling.temperature,
        names.TOP_P: first.sampling.top_p,
        names.TOP_K: first.sampling.top_k,
        names.INPUT_TOKENS: sum(prompts.values()),
    }
