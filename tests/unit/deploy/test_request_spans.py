"""Spans of requests at the ingress: what they tell, whose traces are kept, and what stays out."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

import pytest
from http_fakes import MODEL, Served
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from test_disconnect import LONG, Client

from actors.errors import UnavailableError
from cluster import logs
from cluster.logs import JsonLines
from tests.unit.recorded_spans import (
    KEPT,
    NOT_KEPT,
    SPAN_ID,
    TRACE_ID,
    RecordedSpans,
    parent_id,
    span_id,
    trace_id,
)

Serve = Callable[..., Served]
Ids = Callable[[str], list[int]]


@pytest.fixture
def spans() -> RecordedSpans:
    return RecordedSpans()


def only(spans: RecordedSpans) -> ReadableSpan:
    (span,) = spans.ended()
    return span


async def test_what_a_span_tells(serve: Serve, ids: Ids, spans: RecordedSpans) -> None:
    served = serve(ids("Hello world"), tracer=spans.tracer)
    answer = await served.complete(prompt="HI", max_tokens=5, n=2, temperature=0.5, seed=3)
    span = only(spans)
    assert (span.name, span.kind) == (f"text_completion {MODEL}", SpanKind.SERVER)
    usage = answer["usage"]
    assert span.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "treeserve",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": tuple(
            choice["finish_reason"] for choice in answer["choices"]
        ),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/completions",
        "url.scheme": "http",
    }
    assert [event.name for event in span.events] == ["first token"]
    assert span.status.status_code is StatusCode.UNSET


async def test_a_stream_lasts_to_its_last_byte(
    serve: Serve, ids: Ids, spans: RecordedSpans
) -> None:
    served = serve(ids("Hello world"), tracer=spans.tracer, hold_after=1)
    stream = asyncio.create_task(
        served.stream_chat(messages=[{"role": "user", "content": "HI"}], max_tokens=5)
    )
    await served.backend.held.wait()
    assert spans.ended() == []
    served.backend.released.set()
    await stream
    span = only(spans)
    assert span.name == f"chat {MODEL}"
    assert span.attributes["gen_ai.usage.output_tokens"] > 1
    assert span.start_time <= span.events[0].timestamp <= span.end_time


async def test_it_goes_on_in_the_trace_that_the_request_names(
    serve: Serve, ids: Ids, spans: RecordedSpans
) -> None:
    served = serve(ids("Hello"), tracer=spans.tracer)
    body = {"prompt": "HI", "max_tokens": 1}
    await served.http.post("/v1/completions", json=body, headers={"traceparent": KEPT})
    span = only(spans)
    assert (trace_id(span), parent_id(span)) == (TRACE_ID, SPAN_ID)
    (asked,) = served.backend.requests
    assert asked.traceparent.startswith(f"00-{TRACE_ID}-{span_id(span)}-")


@pytest.mark.parametrize(
    ("sample", "traceparent", "is_traced"),
    [(0, None, 0), (1, None, 1), (0, KEPT, 1), (1, NOT_KEPT, 0), (0, "nonsense", 0)],
)
async def test_whose_traces_are_kept(
    serve: Serve, ids: Ids, sample: float, traceparent: str | None, is_traced: bool
) -> None:
    spans = RecordedSpans(sample)
    served = serve(ids("Hello"), tracer=spans.tracer)
    headers = {"traceparent": traceparent} if traceparent else {}
    await served.http.post("/v1/completions", json={"prompt": "HI"}, headers=headers)
    assert len(spans.ended()) == is_traced
    (asked,) = served.backend.requests
    assert bool(asked.traceparent) == is_traced


async def test_only_generation_is_traced_and_without_a_tracer_nothing(
    serve: Serve, ids: Ids, spans: RecordedSpans
) -> None:
    served = serve(ids("Hello"), tracer=spans.tracer)
    for path in ("/health", "/metrics", "/v1/models", "/ready"):
        await served.http.get(path)
    assert spans.ended() == []
    plain = serve(ids("Hello"))
    await plain.http.post("/v1/completions", json={"prompt": "HI"}, headers={"traceparent": KEPT})
    assert [request.traceparent for request in plain.backend.requests] == [""]


async def test_a_clients_mistake_is_no_error_of_ours(serve: Serve, spans: RecordedSpans) -> None:
    await serve(tracer=spans.tracer).http.post("/v1/completions", json={"prompt": 7.5})
    span = only(spans)
    assert span.attributes["http.response.status_code"] == 400
    assert "error.type" not in span.attributes
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("after", "stream", "status", "error"),
    [(0, True, 503, "503"), (2, False, 503, "503"), (2, True, 200, "broken")],
)
async def test_what_fails_and_what_breaks(
    serve: Serve,
    ids: Ids,
    spans: RecordedSpans,
    after: int,
    stream: bool,
    status: int,
    error: str,
) -> None:
    lost = UnavailableError("the LLM is lost")
    served = serve(ids("abcde"), tracer=spans.tracer, errors={after: lost})
    await served.http.post("/v1/completions", json={"prompt": "Hello", "stream": stream})
    span = only(spans)
    assert span.attributes["http.response.status_code"] == status
    assert span.attributes["error.type"] == error
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["gen_ai.usage.output_tokens"] == after
    assert span.attributes["gen_ai.response.finish_reasons"] == ()


async def test_a_fault_of_ours_tells_nothing_of_its_message(
    serve: Serve, ids: Ids, spans: RecordedSpans
) -> None:
    served = serve(ids("abcde"), tracer=spans.tracer, errors={0: ValueError("secret words")})
    await served.http.post("/v1/completions", json={"prompt": "Hello"})
    span = only(spans)
    assert span.attributes["error.type"] == "500"
    assert "secret" not in span.to_json()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away(
    serve: Serve, ids: Ids, spans: RecordedSpans, stream: bool
) -> None:
    served = serve(ids("a" * 150), tracer=spans.tracer, hold_after=3)
    client = Client(served.app, {**LONG, "stream": stream})
    await served.backend.held.wait()
    client.gone.set()
    await client.served
    span = only(spans)
    assert span.attributes["error.type"] == "client_disconnected"
    assert span.attributes["gen_ai.usage.output_tokens"] == 3
    assert span.status.status_code is StatusCode.UNSET


async def test_not_a_word_of_prompts_or_answers(
    serve: Serve, ids: Ids, spans: RecordedSpans
) -> None:
    served = serve(ids("STOP world"), tracer=spans.tracer)
    messages = [{"role": "user", "content": "Hello GH"}]
    await served.chat(messages=messages, max_tokens=8, stop=["quux"])
    shown = only(spans).to_json()
    for word in ("Hello", "GH", "STOP", "world", "quux"):
        assert word not in shown


async def test_lines_of_a_traced_request_carry_its_trace(
    serve: Serve, ids: Ids, spans: RecordedSpans, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deploy")
    lines: list[str] = []
    shown = JsonLines("ingress")

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(shown.format(record))

    logger, handler = logging.getLogger("deploy.request_log"), Shown()
    logger.addHandler(handler)
    try:
        await serve(ids("Hello"), tracer=spans.tracer).complete(prompt="HI")
        await serve(ids("Hello")).complete(prompt="HI")
    finally:
        logger.removeHandler(handler)
    traced, other = map(json.loads, lines)
    assert traced["trace_id"] == trace_id(only(spans))
    assert "trace_id" not in other
    assert logs.trace_id.get() is None
