"""What is watched does what it did before, and is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry

from actors.drafts import DraftModelDescription, DraftReply, DraftRequest, SessionDraft
from actors.errors import ProtocolError
from actors.messages import LLMDescription, Row, StepMessage, StepReply
from actors.request_manager.ports import Draft, DraftTask, StepDraws
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from cluster.metrics import DRAFTER_OUTCOMES, Metrics
from cluster.observed import ObservedDrafter, ObservedDrafting, ObservedRank

LLM = LLMDescription("m", 100, 64, 7, 16, 1, "", "float32", "cpu", "fused", True)
MODEL = {"model_name": "m"}


class Ticking:
    """A clock that goes on by half a second each time it is read."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.5
        return self.now_s


class ScriptedRank:
    def describe(self) -> LLMDescription:
        return LLM

    def step(self, message: StepMessage) -> StepReply:
        if message.step_id < 0:
            raise ProtocolError("no such step")
        return StepReply(message.epoch, message.step_id)


class ScriptedDrafting:
    def __init__(self) -> None:
        self.released: list[int] = []

    def describe(self) -> DraftModelDescription:
        return DraftModelDescription("d", 100, "", 3, 1)

    def draft(self, request: DraftRequest) -> DraftReply:
        known = SessionDraft(1, tree=TokenTree.chain([5, 6]), scores=(0.5, 0.5))
        return DraftReply((known, SessionDraft(2, unknown_session=True)))

    def release(self, session_ids: Sequence[int]) -> None:
        self.released += session_ids


class ScriptedDrafter:
    """Answers as it is told; `HANGS` until it is cancelled."""

    name = "scripted"
    HANGS = object()

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.forgotten: list[int] = []

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        if self.answer is self.HANGS:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)


def test_a_rank_and_its_steps() -> None:
    registry = CollectorRegistry()
    rank = ObservedRank(ScriptedRank(), registry, Ticking())
    assert rank.describe() is LLM
    message = StepMessage(4, 2, rows=(Row(1, 0, TokenTree.chain([7, 8, 9])),))
    assert rank.step(message) == StepReply(4, 2)
    with pytest.raises(ProtocolError):
        rank.step(StepMessage(4, -1))
    value = registry.get_sample_value
    assert value("treeserve_rank_step_seconds_sum", MODEL) == 0.5
    assert value("treeserve_rank_step_seconds_count", MODEL) == 1
    assert value("treeserve_rank_tokens_total", MODEL) == 3
    assert value("treeserve_rank_failed_steps_total", MODEL) == 1
    assert value("treeserve_rank_kv_blocks", MODEL) == 7


def test_a_draft_model_and_its_rounds() -> None:
    registry = CollectorRegistry()
    inner = ScriptedDrafting()
    drafting = ObservedDrafting(inner, registry, "m", Ticking())
    assert drafting.describe().weights_version == 3
    assert len(drafting.draft(DraftRequest()).drafts) == 2
    drafting.release([4])
    assert inner.released == [4]
    value = registry.get_sample_value
    assert value("treeserve_ssm_draft_seconds_sum", MODEL) == 0.5
    assert value("treeserve_ssm_unknown_sessions_total", MODEL) == 1
    assert value("treeserve_ssm_nodes_total", MODEL) == 2
    assert value("treeserve_ssm_weights_version", MODEL) == 3


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({1: Draft(TokenTree.chain([5]), (0.5,))}, "answered"),
        ({}, "empty"),
        (ScriptedDrafter.HANGS, "late"),
        (ProtocolError("nonsense"), "failed"),
    ],
)
async def test_what_became_of_asking_a_drafter(answer: object, outcome: str) -> None:
    registry = CollectorRegistry()
    inner = ScriptedDrafter(answer)
    drafter = ObservedDrafter(inner, Metrics(registry, "m", ["scripted"]), Ticking())
    call = asyncio.create_task(drafter.draft([DraftTask(1, [1], 1, SamplingParams(), 4, 4)]))
    await asyncio.sleep(0)
    if outcome == "late":
        call.cancel()
    (ended,) = await asyncio.gather(call, return_exceptions=True)
    assert isinstance(ended, (ProtocolError, asyncio.CancelledError)) or ended == answer
    labels = MODEL | {"drafter": "scripted"}
    for each in DRAFTER_OUTCOMES:
        count = registry.get_sample_value(
            "treeserve_drafter_calls_total", labels | {"outcome": each}
        )
        assert count == (each == outcome)
    assert registry.get_sample_value("treeserve_drafter_seconds_sum", labels) == 0.5
    drafter.forget(9)
    assert inner.forgotten == [9]


def test_a_drafter_that_learns_is_told_of_steps_and_no_other() -> None:
    class Learning(ScriptedDrafter):
        def observe(self, steps: Sequence[StepDraws]) -> None:
            seen.extend(steps)

    seen: list[StepDraws] = []
    step = StepDraws([1, 2], 1, 0, TokenTree(), {-1: 2}, True)
    for inner in (ScriptedDrafter({}), Learning({})):
        metrics = Metrics(CollectorRegistry(), "m", ["scripted"])
        ObservedDrafter(inner, metrics).observe([step])
    assert seen == [step]
