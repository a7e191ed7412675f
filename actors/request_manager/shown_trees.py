"""Adds trees to the events of requests that ask for them; costs the others nothing but the look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from actors.request_manager.composer import StepRow
from actors.request_manager.generation import GenerationEvent
from actors.request_manager.step_tree import StepTree
from actors.request_manager.verify import Verified


def with_trees(
    rows: Sequence[StepRow],
    verified: Sequence[Verified | None],
    events: Sequence[GenerationEvent | None],
    phase_s: Mapping[str, float],
    forward_s: float,
) -> Sequence[GenerationEvent | None]:
    """The events of a step's rows, with its trees where they are wanted.

    Args:
        phase_s, forward_s: seconds by phase so far, and of the LLM's forward pass.
    """
    if not any(row.turn.request.asked.return_trees for row in rows):
        return events
    seconds = {**phase_s, "forward": forward_s}
    return [
        event
        if event is None or outcome is None or not row.turn.request.asked.return_trees
        else replace(event, trees=(_step_tree(row, outcome, event, seconds),))
        for row, outcome, event in zip(rows, verified, events, strict=True)
    ]


def _step_tree(
    row: StepRow, outcome: Verified, event: GenerationEvent, phase_s: Mapping[str, float]
) -> StepTree:
    proposers = (
        tuple(proposal.drafter for proposal in proposals) for proposals in row.drafts.proposals
    )
    return StepTree(
        step=row.turn.request.stats.num_llm_steps,
        token_ids=row.tree.token_ids,
        parents=row.tree.parents,
        proposers=((), *proposers),
        estimates=(1.0, *row.drafts.acceptance),
        accepted=outcome.accepted[: len(event.token_ids)],
        committed_ids=event.token_ids,
        phase_s=phase_s,
    )
