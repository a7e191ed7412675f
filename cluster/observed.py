"""Ranks, draft models and drafters, each watched while it does its work.

Wrappers with the faces of what they wrap: none of the wrapped knows that it is counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry

from actors.drafts import DraftModelDescription, DraftReply, DraftRequest
from actors.llm.actor import Rank
from actors.messages import LLMDescription, StepMessage, StepReply
from actors.request_manager.ports import Clock, Draft, Drafter, DraftTask, Learner, StepDraws
from actors.ssm.actor import Drafting
from cluster.metric_maker import MetricMaker
from cluster.metrics import STEP_BUCKETS_S, Metrics
from cluster.step_spans import DraftCall


class ObservedRank:
    """Implements `actors.llm.actor.Rank` around a rank.

    Args:
        rank: what runs the steps.
        registry: of the rank's process.
        clock: monotonic seconds.
    """

    def __init__(
        self, rank: Rank, registry: CollectorRegistry, clock: Clock = time.monotonic
    ) -> None:
        self._rank = rank
        self._clock = clock
        description = rank.describe()
        make = MetricMaker(registry, description.model_id)
        self._seconds = make.histogram(
            "treeserve_rank_step_seconds", "A step inside the rank, whole.", STEP_BUCKETS_S
        )
        self._tokens = make.counter("treeserve_rank_tokens", "Tokens of steps, draft nodes too.")
        self._failures = make.counter("treeserve_rank_failed_steps", "Steps that raised.")
        make.gauge("treeserve_rank_kv_blocks", "KV blocks of the rank's cache.").set(
            description.num_kv_blocks
        )

    def describe(self) -> LLMDescription:
        return self._rank.describe()

    def step(self, message: StepMessage) -> StepReply:
        begun_s = self._clock()
        with self._failures.count_exceptions():
            reply = self._rank.step(message)
        self._seconds.observe(self._clock() - begun_s)
        self._tokens.inc(message.num_tokens)
        return reply


class ObservedDrafting:
    """Implements `actors.ssm.actor.Drafting` around a draft model.

    Args:
        drafting: what drafts.
        registry: of the draft model's process.
        model_name: of the LLM that it drafts for.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        drafting: Drafting,
        registry: CollectorRegistry,
        model_name: str,
        clock: Clock = time.monotonic,
    ) -> None:
        self._drafting = drafting
        self._clock = clock
        make = MetricMaker(registry, model_name)
        self._seconds = make.histogram(
            "treeserve_ssm_draft_seconds", "A round of drafting inside the model.", STEP_BUCKETS_S
        )
        self._sessions = make.counter("treeserve_ssm_sessions", "Sessions asked for, over rounds.")
        self._unknown = make.counter(
            "treeserve_ssm_unknown_sessions", "Those of them that had been forgotten."
        )
        self._nodes = make.counter("treeserve_ssm_nodes", "Draft nodes made.")
        self._failures = make.counter("treeserve_ssm_failed_rounds", "Rounds that raised.")
        self._version = make.gauge("treeserve_ssm_weights_version", "Of the weights that draft.")

    def describe(self) -> DraftModelDescription:
        description = self._drafting.describe()
        self._version.set(description.weights_version)
        return description

    def draft(self, request: DraftRequest) -> DraftReply:
        begun_s = self._clock()
        with self._failures.count_exceptions():
            reply = self._drafting.draft(request)
        self._seconds.observe(self._clock() - begun_s)
        self._sessions.inc(len(request.sessions))
        self._unknown.inc(sum(draft.unknown_session for draft in reply.drafts))
        self._nodes.inc(sum(len(draft.tree) for draft in reply.drafts))
        return reply

    def release(self, session_ids: Sequence[int]) -> None:
        self._drafting.release(session_ids)


class ObservedDrafter:
    """Implements `ports.Drafter` around a drafter, as the manager sees it.

    Args:
        drafter: who is asked.
        metrics: is told how each call went.
        clock: monotonic seconds.
        on_call: is told of each call; None for nobody.
    """

    def __init__(
        self,
        drafter: Drafter,
        metrics: Metrics,
        clock: Clock = time.monotonic,
        on_call: Callable[[DraftCall], None] | None = None,
    ) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._metrics = metrics
        self._clock = clock
        self._on_call = on_call

    @property
    def is_away(self) -> bool:
        return self._drafter.is_away

    def replace(self, drafter: Drafter) -> None:
        """Ask another drafter from now on, in the name of the one before."""
        self._drafter = drafter

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        begun_s = self._clock()
        outcome = "failed"
        try:
            drafts = await self._drafter.draft(tasks)
            outcome = "answered" if drafts else "empty"
        except asyncio.CancelledError:
            outcome = "late"  # whoever asks cancels at the deadline
            raise
        finally:
            ended_s = self._clock()
            self._metrics.drafter_called(self.name, outcome, ended_s - begun_s)
            if self._on_call is not None:
                asked = {task.request_id for task in tasks}
                self._on_call(DraftCall(self.name, outcome, begun_s, ended_s, asked))
        return drafts

    def observe(self, steps: Sequence[StepDraws]) -> None:
        if isinstance(self._drafter, Learner):
            self._drafter.observe(steps)

    def forget(self, request_id: int) -> None:
        self._drafter.forget(request_id)
