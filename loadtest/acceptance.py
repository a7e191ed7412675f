"""How speculation went, by the server's own account in its answers.

Read from `metrics.speculative_decoding`, the shape that vLLM and TreeServe send. Sums over answers,
never means of ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.records import RequestRecord

LLM_STEPS, SPEC_STEPS = "num_llm_steps", "num_spec_steps"
DRAFTED, ACCEPTED = "num_draft_tokens", "num_accepted_draft_tokens"
COUNTS = (LLM_STEPS, SPEC_STEPS, DRAFTED, ACCEPTED)
HISTOGRAM = "acceptance_histogram"


@dataclass(frozen=True)
class Acceptance:
    """Over the answers that told.

    Attributes:
        num_answers: how many told.
        num_llm_steps: steps of the LLM that carried them after the prompt; 0 if not told.
        tokens_per_step: output tokens after the first, by those steps; None if not told.
        num_spec_steps: those that had drafts.
        by_depth: share of drafted steps that committed at least 1, 2, … draft tokens.
    """

    num_answers: int
    num_llm_steps: int
    tokens_per_step: float | None
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    by_depth: tuple[float, ...]

    @property
    def rate(self) -> float | None:
        """Accepted by drafted tokens."""
        if not self.num_draft_tokens:
            return None
        return self.num_accepted_tokens / self.num_draft_tokens

    @property
    def mean_length(self) -> float | None:
        """Tokens committed by a drafted step, the LLM's own token included."""
        if not self.num_spec_steps:
            return None
        return 1 + self.num_accepted_tokens / self.num_spec_steps

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rate": self.rate, "mean_length": self.mean_length}


def account_of(event: dict[str, Any]) -> dict[str, Any]:
    """What an event of the stream tells of speculation; empty if nothing that could be summed.

    The account is no part of the API: one of another shape is none, and no failure.
    """
    metrics = event.get("metrics")
    told = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if not isinstance(told, dict):
        return {}
    histogram = told.get(HISTOGRAM) or []
    counts = [told.get(name) or 0 for name in COUNTS]
    if not isinstance(histogram, list):
        return {}
    return told if all(isinstance(count, int) for count in counts + histogram) else {}


def acceptance(records: Sequence[RequestRecord]) -> Acceptance | None:
    """None if no answer told of speculation."""
    telling = [record for record in records if record.speculation]
    if not telling:
        return None

    def total(name: str) -> int:
        return sum(record.speculation.get(name) or 0 for record in telling)

    steps = total(LLM_STEPS)
    tokens = sum(max(0, (record.completion_tokens or 0) - 1) for record in telling)
    return Acceptance(
        len(telling),
        steps,
        tokens / steps if steps else None,
        total(SPEC_STEPS),
        total(DRAFTED),
        total(ACCEPTED),
        _by_depth([record.speculation.get(HISTOGRAM) or [] for record in telling]),
    )


def _by_depth(histograms: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """From histograms of accepted tokens a step to the share of steps that reached each depth."""
    longest = max(map(len, histograms), default=0)
    summed = [sum(h[place] for h in histograms if place < len(h)) for place in range(longest)]
    steps = sum(summed)
    if not steps:
        return ()
    return tuple(sum(summed[depth:]) / steps for depth in range(1, longest))
