"""Spans of one request from a real server: the ingress's, the manager's, its steps', one trace."""

from __future__ import annotations

import secrets

import pytest
from collector import Collector, SentSpan
from conftest import Server, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.model]

PROMPT = "Once upon a time, in a village by the sea, there lived a quizzical lighthouse keeper"
TOKENS = 24


def sent_trace(server: Server, collector: Collector, **fields: object) -> list[SentSpan]:
    """Ask, as part of a trace of our own; returns it whole."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True} | fields
    headers = {"traceparent": f"00-{trace_id}-{span_id}-01"}
    with server.client() as client:
        client.post("/v1/completions", json=body, headers=headers).raise_for_status()

    def is_complete() -> bool:
        spans = collector.spans(trace_id)
        tops = {span.parent_id == span_id for span in spans}
        return True in tops and bool(named(spans, "output")) and num_committed(spans) == TOKENS

    wait_until(is_complete)
    return collector.spans(trace_id)


def named(spans: list[SentSpan], name: str) -> list[SentSpan]:
    return [span for span in spans if span.name == name]


def num_committed(spans: list[SentSpan]) -> int:
    return sum(step.attributes["treeserve.tokens.committed"] for step in named(spans, "step"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_followed_through_the_processes(
    server: Server, collector: Collector, stream: bool
) -> None:
    spans = sent_trace(server, collector, stream=stream)
    (request,) = named(spans, f"text_completion {server.model}")
    (output,) = named(spans, "output")
    steps = named(spans, "step")
    assert (request.service, output.service) == ("treeserve-ingress", "treeserve-manager")
    assert request.attributes["gen_ai.usage.output_tokens"] == TOKENS
    assert request.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert request.attributes["http.response.status_code"] == 200
    assert output.parent_id == request.span_id
    assert {step.parent_id for step in steps} == {output.span_id}
    # The draft model is asked in every step but the prefill's, and perhaps the last one's.
    for step in steps[1:-1]:
        below = {span.name for span in spans if span.parent_id == step.span_id}
        assert below == {"draft ssm", "llm", "verify"}


def test_requests_are_traced_by_lot_or_by_wish_and_never_in_words(
    server: Server, collector: Collector
) -> None:
    """The server's lot is never: only those are traced that ask for it."""
    before = set(collector.bodies)
    with server.client() as client:
        client.post("/v1/completions", json={"prompt": PROMPT}).raise_for_status()
    spans = sent_trace(server, collector)
    bodies = [body for body in collector.bodies if body not in before]
    assert sum(body.count(b"text_completion " + server.model.encode()) for body in bodies) == 1
    assert len(named(spans, "output")) == 1
    assert not any(b"quizzical" in body for body in collector.bodies)
