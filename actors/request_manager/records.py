"""What a step is remembered by: raw counts and seconds for observers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from actors.messages import StepMessage, StepReply
from actors.request_manager.composer import StepRow
from actors.request_manager.depth_counts import DepthCounts
from actors.request_manager.drafter_worth import StepOutcome
from actors.request_manager.generation import GenerationEvent
from actors.request_manager.guessing import Guesses
from actors.request_manager.ports import Clock, StepRecord, TracedRow
from actors.request_manager.turns import AdmissionCounts
from actors.request_manager.verify import Verified


class Laps:
    """Splits a stretch of time, from `begun_s` on, into named phases."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begun_s = self._since = clock()
        self.seconds: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """What passed since the last call, or since the start, was `phase`."""
        now = self._clock()
        self.seconds[phase] = now - self._since
        self._since = now


@dataclass
class Tally:
    """What one step and its drafts came to; the seconds as in `SpeculationStats`.

    Attributes:
        num_draws: requests that got a token whatever became of their drafts.
        num_forbidden: drafts that a grammar forbids: the LLM does not run them.
    """

    draft_s: float
    step_s: float
    forward_s: float
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    accepted_depths: list[int] = field(default_factory=list)
    depths: DepthCounts = field(default_factory=DepthCounts)
    num_committed: int = 0
    num_draws: int = 0
    num_forbidden: int = 0


def step_record(
    message: StepMessage,
    rows: Sequence[StepRow],
    reply: StepReply,
    tally: Tally,
    counts: AdmissionCounts,
    laps: Laps,
    traced: Sequence[TracedRow],
) -> StepRecord:
    """Everything that is known of a step when it is over."""
    return StepRecord(
        num_rows=len(rows),
        num_tokens=message.num_tokens,
        num_draft_nodes=sum(len(row.drafts) for row in rows),
        num_committed=tally.num_committed,
        drafted=tally.drafted,
        accepted=tally.accepted,
        accepted_depths=tally.accepted_depths,
        queried_tokens=counts.queried_tokens,
        reused_tokens=counts.reused_tokens,
        preemptions=counts.preemptions,
        phase_s=laps.seconds,
        forward_s=reply.forward_s,
        sample_s=reply.sample_s,
        depths=tally.depths,
        noise_hits=reply.noise_hits,
        noise_misses=reply.noise_misses,
        step_id=message.step_id,
        group=message.group,
        begun_s=laps.begun_s,
        admitted_tokens=counts.admitted_tokens,
        traced=traced,
    )


def traced_rows(
    rows: Sequence[StepRow],
    verified: Sequence[Verified | None],
    events: Sequence[GenerationEvent | None],
) -> list[TracedRow]:
    """The rows of requests whose traces are kept; `events` are those that the step brought."""
    traced = []
    for row, outcome, event in zip(rows, verified, events, strict=True):
        if row.turn.request.asked.traceparent:
            num_committed = len(event.token_ids) if event else 0
            num_accepted = min(len(outcome.accepted), num_committed) if outcome else 0
            traced.append(
                TracedRow(
                    row.turn.request.request_id,
                    row.turn.request.asked.traceparent,
                    row.turn.num_tokens,
                    len(row.drafts),
                    num_accepted,
                    num_committed,
                )
            )
    return traced


def step_outcome(
    message: StepMessage,
    rows: Sequence[StepRow],
    tally: Tally,
    phase_s: Mapping[str, float],
    guesses: Guesses,
    learning_s: float,
) -> StepOutcome:
    """What the budget learns from a step.

    Args:
        learning_s: what learning from the step before took, which counts as this one's.
    """
    return StepOutcome(
        num_draws=tally.num_draws,
        num_tokens=message.num_tokens - tally.num_forbidden,
        num_draft_nodes=sum(len(row.drafts) for row in rows) - tally.num_forbidden,
        num_committed=tally.num_committed,
        step_s=phase_s["step"],
        total_s=sum(phase_s.values()) + learning_s,
        samples=guesses.kind.samples,
        allowed=guesses.kind.drafters,
        asking_s=guesses.asking_s,
        considered=guesses.considered,
        answered={name: len(ids) for name, ids in guesses.answered.items()},
        drafted=tally.drafted,
    )
