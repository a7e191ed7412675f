"""Spans of steps: one for each traced request, with what was done in the step below the first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry

from actors.request_manager.ports import Drafter, StepRecord, TracedRow
from cluster import step_spans
from cluster.metrics import Metrics
from cluster.observed import ObservedDrafter
from cluster.step_spans import DraftCall, StepSpans
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
from tests.unit.request_manager.house import (
    BrokenDrafter,
    House,
    LateDrafter,
    OracleDrafter,
    Watcher,
    ask,
    collect,
)

PHASES = {"draft": 2.0, "merge": 1.0, "step": 4.0, "verify": 0.5, "commit": 0.25, "emit": 0.25}


class Spanning(Watcher):
    """Makes spans of what it sees, too."""

    def __init__(self, spans: StepSpans) -> None:
        super().__init__()
        self._spans = spans

    def step_done(self, record: StepRecord) -> None:
        super().step_done(record)
        self._spans.step_done(record)


def house_with_spans(recorded: RecordedSpans, *drafters: Drafter) -> House:
    spans = StepSpans(recorded.tracer)
    metrics = Metrics(CollectorRegistry(), "m")
    observed = [ObservedDrafter(one, metrics, on_call=spans.drafter_called) for one in drafters]
    house = House(observed)
    house.watcher = Spanning(spans)
    return house


def record(*rows: TracedRow, begun_s: float = 100.0) -> StepRecord:
    return StepRecord(
        3, 20, 8, 5, {}, {}, (), 0, 0, 0, PHASES, 1.5, 0.5, step_id=7, begun_s=begun_s, traced=rows
    )


def spans_at(recorded: RecordedSpans, now_s: float) -> StepSpans:
    """A wall clock that is a thousand seconds before the manager's."""
    return StepSpans(recorded.tracer, lambda: now_s, lambda: round((now_s - 1000) * 1e9))


def times(recorded: RecordedSpans) -> dict[str, tuple[float, float]]:
    """When each span began and ended, by the manager's clock."""
    return {
        span.name: (span.start_time / 1e9 + 1000, span.end_time / 1e9 + 1000)
        for span in recorded.ended()
        if span.start_time is not None and span.end_time is not None
    }


async def test_a_traced_request_among_others() -> None:
    recorded = RecordedSpans()
    house = house_with_spans(recorded, OracleDrafter(), BrokenDrafter(), LateDrafter())
    async with house as engine:
        answer, _ = await asyncio.gather(
            collect(engine, ask(traceparent=KEPT)), collect(engine, ask((4, 5), name="other"))
        )
    steps = recorded.ended("step")
    assert {trace_id(span) for span in recorded.ended()} == {TRACE_ID}
    assert {parent_id(span) for span in steps} == {SPAN_ID}
    assert answer.stats is not None
    assert sum(span.attributes["treeserve.tokens.committed"] for span in steps) == 20
    assert (
        sum(span.attributes["treeserve.tokens.accepted"] for span in steps)
        == answer.stats.num_accepted_draft_tokens
        > 0
    )
    assert (
        sum(span.attributes["treeserve.tree.nodes"] for span in steps)
        == answer.stats.num_draft_tokens
    )
    assert max(span.attributes["treeserve.batch.requests"] for span in steps) == 2
    prefill, *decodes = steps
    assert prefill.attributes["treeserve.tokens.run"] == 3
    assert {span.attributes["treeserve.tokens.run"] for span in decodes} == {1}


async def test_below_a_step_are_its_drafters_the_llm_and_what_came_of_it() -> None:
    recorded = RecordedSpans()
    house = house_with_spans(recorded, OracleDrafter(), BrokenDrafter(), LateDrafter())
    async with house as engine:
        await collect(engine, ask(traceparent=KEPT))
    _, *decodes, last = recorded.ended("step")  # prefills draft nothing
    for step in decodes:
        below = [span for span in recorded.ended() if parent_id(span) == span_id(step)]
        assert sorted(span.name for span in below) == [
            "draft broken",
            "draft late",
            "draft oracle",
            "llm",
            "verify",
        ]
        outcomes = {
            span.attributes["treeserve.drafter"]: span.attributes["treeserve.drafter.outcome"]
            for span in below
            if span.name.startswith("draft")
        }
        assert outcomes == {"oracle": "answered", "broken": "failed", "late": "late"}
        # What the late one did once it was let go may end after the drafting, not before it.
        for span in below:
            assert step.start_time <= span.start_time <= span.end_time
    assert any(parent_id(span) == span_id(last) for span in recorded.ended("verify"))


async def test_nothing_is_made_of_requests_that_are_not_traced() -> None:
    recorded = RecordedSpans()
    house = house_with_spans(recorded, OracleDrafter())
    async with house as engine:
        await collect(engine, ask())
    assert recorded.ended() == []
    assert [step.traced for step in house.watcher.steps if step.traced] == []


def test_phases_follow_one_another_on_the_walls_clock() -> None:
    recorded = RecordedSpans()
    spans_at(recorded, 109.0).step_done(record(TracedRow(1, KEPT, 1, 8, 3, 4)))
    assert times(recorded) == {
        "step": (100.0, 108.0),
        "llm": (103.0, 107.0),
        "verify": (107.0, 107.75),
    }
    (llm,) = recorded.ended("llm")
    assert llm.attributes == {"treeserve.llm.forward_s": 1.5, "treeserve.llm.sample_s": 0.5}
    (step,) = recorded.ended("step")
    assert step.attributes == {
        "treeserve.step.id": 7,
        "treeserve.step.group": 0,
        "treeserve.batch.requests": 3,
        "treeserve.batch.tokens": 20,
        "treeserve.tokens.run": 1,
        "treeserve.tree.nodes": 8,
        "treeserve.tokens.accepted": 3,
        "treeserve.tokens.committed": 4,
    }


def test_what_a_step_did_is_told_once_and_linked_to_by_its_other_requests() -> None:
    recorded = RecordedSpans()
    other = KEPT.replace(TRACE_ID, TRACE_ID[::-1])
    spans = spans_at(recorded, 109.0)
    spans.drafter_called(DraftCall("ssm-0", "answered", 100.0, 102.0, {2}))
    spans.step_done(record(TracedRow(1, KEPT, 5, 0, 0, 0), TracedRow(2, other, 1, 8, 3, 4)))
    first, second = recorded.ended("step")
    assert (trace_id(first), trace_id(second)) == (TRACE_ID, TRACE_ID[::-1])
    assert [link.context for link in second.links] == [first.get_span_context()]
    assert not first.links
    assert (
        first.attributes["treeserve.tokens.run"],
        second.attributes["treeserve.tokens.run"],
    ) == (5, 1)
    inside = [span for span in recorded.ended() if span.name != "step"]
    assert [span.name for span in inside] == ["draft ssm-0", "llm", "verify"]
    assert {parent_id(span) for span in inside} == {span_id(first)}
    assert inside[-1].attributes == {
        "treeserve.tokens.accepted": 3,
        "treeserve.tokens.committed": 4,
    }


def test_a_trace_that_is_not_kept_has_none() -> None:
    recorded = RecordedSpans()
    spans_at(recorded, 109.0).step_done(record(TracedRow(1, NOT_KEPT, 1, 8, 3, 4)))
    assert recorded.ended() == []


def drafters_of(calls: Sequence[DraftCall], request_id: int) -> set[str]:
    recorded = RecordedSpans()
    spans = spans_at(recorded, 109.0)
    for call in calls:
        spans.drafter_called(call)
    spans.step_done(record(TracedRow(request_id, KEPT, 1, 8, 3, 4)))
    return {str(span.attributes["treeserve.drafter"]) for span in recorded.ended("draft")}


def test_calls_belong_to_the_step_and_the_requests_they_were_made_for() -> None:
    calls = [
        DraftCall("before", "answered", 98.0, 99.0, {1}),
        DraftCall("lost", "late", 99.0, 101.0, {1}),  # of a step that never came to its end
        DraftCall("ssm-0", "answered", 100.0, 102.0, {1, 2}),
        DraftCall("ssm-1", "answered", 100.5, 101.0, {2}),
    ]
    assert drafters_of(calls, 1) == {"ssm-0"}
    assert drafters_of(calls, 2) == {"ssm-0", "ssm-1"}
    assert drafters_of(calls, 3) == set()


def test_calls_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_spans, "MAX_CALLS", 2)
    calls = [DraftCall(f"ssm-{i}", "answered", 100.0, 101.0 + i, {1}) for i in range(3)]
    assert drafters_of(calls, 1) == {"ssm-1", "ssm-2"}
