"""What grammars say of a step before it is run: who cannot draw yet, and which drafts are in vain.

Drafts that a request's grammar forbids can never be accepted, so they are left out of the forward
pass. The slots that were granted for them stay unwritten; in the reply they are outputs that have
failed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from actors.messages import NewRequest, Row, RowResult
from actors.verification import restricted_draws


@dataclass(frozen=True)
class Verdict:
    """On one step.

    Attributes:
        undrawn: requests whose grammars are not compiled yet.
        kept: by request id, where a row had drafts: the nodes that its grammar allows, ascending;
            the root is among them.
    """

    undrawn: Collection[int] = ()
    kept: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def rows(self, asked: Sequence[Row]) -> Sequence[Row]:
        """The rows as they are to be run."""
        if not self.kept:
            return asked
        return [
            _pruned(row, self.kept[row.request_id]) if row.request_id in self.kept else row
            for row in asked
        ]

    def results(self, asked: Sequence[Row], results: Sequence[RowResult]) -> Sequence[RowResult]:
        """The results by the nodes that were asked for, those that were not run among them."""
        if not (self.kept or self.undrawn):
            return results
        by_id = {row.request_id: row for row in asked}
        return [
            _unpruned(result, by_id[result.request_id], self.kept[result.request_id])
            if result.request_id in self.kept
            else replace(result, undrawn=result.request_id in self.undrawn)
            for result in results
        ]


def can_be_pruned(row: Row, new: NewRequest) -> bool:
    """True if a row is a root with drafts below it, for a request with a grammar."""
    has_drafts = len(row.tree) > 1 and row.first_output == 0 and not row.scored_ids
    return has_drafts and bool(new.grammar) and row.start + 1 >= new.prompt_len


def _pruned(row: Row, kept: Sequence[int]) -> Row:
    draws = restricted_draws(row.draws, kept)
    return replace(row, tree=row.tree.restricted(kept), draws=draws)


def _unpruned(result: RowResult, row: Row, kept: Sequence[int]) -> RowResult:
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
