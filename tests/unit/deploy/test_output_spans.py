"""Spans of outputs in the manager: from their arrival to their end, and steps below them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

import pytest
from opentelemetry.trace import StatusCode

from actors.errors import InputError, UnavailableError
from actors.request_manager.outbox import Outbox
from cluster.logs import FIELDS
from cluster.step_spans import StepSpans
from deploy.output_spans import TracedEngine
from deploy.session import Sessions
from tests.unit.recorded_spans import (
    KEPT,
    SPAN_ID,
    TRACE_ID,
    RecordedSpans,
    parent_id,
    span_id,
    trace_id,
)
from tests.unit.request_manager.house import House, OracleDrafter, ask


async def drained(outbox: Outbox, name: str) -> None:
    while not (await outbox.take())[name].is_last:
        pass


async def test_from_arrival_to_the_end_with_its_steps_below_it() -> None:
    recorded = RecordedSpans()
    house = House([OracleDrafter()])
    step_done, spans = house.watcher.step_done, StepSpans(recorded.tracer)
    house.watcher.step_done = lambda record: (step_done(record), spans.step_done(record))[0]
    outbox = Outbox()
    async with house as engine:
        traced = TracedEngine(engine, recorded.tracer)
        (request,) = traced.submit([(ask(traceparent=KEPT), outbox.sink("r"))])
        await drained(outbox, "r")
    (output,) = recorded.ended("output")
    assert (trace_id(output), parent_id(output)) == (TRACE_ID, SPAN_ID)
    steps = recorded.ended("step")
    assert {parent_id(step) for step in steps} == {span_id(output)}
    assert {trace_id(span) for span in recorded.ended()} == {TRACE_ID}
    stats = request.stats
    assert output.attributes == {
        "treeserve.request.id": "r",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ("length",),
        "treeserve.llm_steps": stats.num_llm_steps,
        "treeserve.tree.nodes": stats.num_draft_tokens,
        "treeserve.tokens.accepted": stats.num_accepted_draft_tokens,
    }
    assert [event.name for event in output.events] == ["first token"]


async def test_a_request_that_is_not_traced_is_passed_on_as_it_is() -> None:
    recorded = RecordedSpans()
    outbox = Outbox()
    async with House() as engine:
        asked = ask()
        (request,) = TracedEngine(engine, recorded.tracer).submit([(asked, outbox.sink("r"))])
        await drained(outbox, "r")
        assert request.asked is asked
    assert recorded.ended() == []


async def test_a_request_that_is_cancelled() -> None:
    recorded = RecordedSpans()
    outbox = Outbox()
    async with House() as engine:
        traced = TracedEngine(engine, recorded.tracer)
        (request,) = traced.submit([(ask(traceparent=KEPT), outbox.sink("r"))])
        await asyncio.sleep(0)
        traced.cancel(request)
        await drained(outbox, "r")
    (output,) = recorded.ended("output")
    assert output.attributes["gen_ai.response.finish_reasons"] == ("abort",)


async def test_what_is_refused_or_fails_says_by_what_error() -> None:
    recorded = RecordedSpans()
    outbox = Outbox()
    engine = await House().__aenter__()
    traced = TracedEngine(engine, recorded.tracer)
    with pytest.raises(InputError):
        traced.submit([(ask((), traceparent=KEPT), outbox.sink("r"))])
    traced.submit([(ask(traceparent=KEPT), outbox.sink("r"))])
    await engine.stop()
    assert isinstance((await outbox.take())["r"].error, UnavailableError)
    refused, failed = recorded.ended("output")
    assert refused.attributes["error.type"] == "InputError"
    assert failed.attributes["error.type"] == "UnavailableError"
    assert {span.status.status_code for span in (refused, failed)} == {StatusCode.ERROR}


async def test_the_managers_line_carries_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "deploy")
    recorded = RecordedSpans()
    async with House() as engine:
        sessions = Sessions(TracedEngine(engine, recorded.tracer))
        async with aclosing(sessions.events("s")) as batches:
            await anext(batches)
            groups = [[ask(name="traced", traceparent=KEPT)], [ask(name="other")]]
            assert sessions.exchange("s", groups, []) == [None, None]
            running = {"traced", "other"}
            while running:
                batch = await anext(batches)
                running -= {name for name, news in batch.items() if news.is_last}
    lines = {fields["request_id"]: fields for r in caplog.records if (fields := vars(r)[FIELDS])}
    assert lines["traced"]["trace_id"] == TRACE_ID
    assert "trace_id" not in lines["other"]
