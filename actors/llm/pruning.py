"""Drafts that a request's grammar forbids are left out of the forward pass.

They can never be accepted, and what the grammar says of them is known before any logits are. The
slots that were granted for them stay unwritten; in the reply they are outputs that have failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from actors.messages import NewRequest, Row, RowResult


def can_be_pruned(row: Row, new: NewRequest) -> bool:
    """True if a row is a root with drafts below it, for a request with a grammar."""
    has_drafts = len(row.tree) > 1 and row.first_output == 0 and not row.scored_ids
    return has_drafts and bool(new.grammar) and row.start + 1 >= new.prompt_len


def pruned(row: Row, kept: Sequence[int]) -> Row:
    """The row with the nodes `kept` alone: ascending, and with every node its ancestors."""
    return replace(row, tree=row.tree.restricted(kept))


def unpruned(result: RowResult, row: Row, kept: Sequence[int]) -> RowResult:
    """The result of a pruned row, as one of the row that was sent."""
    place = {node: output for output, node in enumerate(kept)}
    outputs = [place.get(node) for node in range(len(row.tree))]
    failed = {kept[output] for output in result.failed_outputs}
    failed.update(node for node, output in enumerate(outputs) if output is None)
    return replace(
        result,
        drawn_ids=tuple(result.drawn_ids[output or 0] for output in outputs),
        logprobs=tuple(result.logprobs[output or 0] for output in outputs if result.logprobs),
        top=tuple(result.top[output or 0] for output in outputs if result.top),
        failed_outputs=tuple(sorted(failed)),
    )
