"""Puts a step's message together, and keeps what the ranks must be told with the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from actors.messages import KVCommit, NewRequest, Row, StepMessage
from actors.request_manager.merge import MergedTree
from actors.request_manager.turns import Grant, Returned, Turn
from actors.tree import TokenTree
from actors.verification import NodeDraws


@dataclass(frozen=True)
class StepRow:
    """One request's share of a step, as it was sent.

    Attributes:
        drafts: the draft nodes below the last of the turn's own tokens.
        tree: that token with the drafts below it: what verification walks.
        row: as sent; node `turn.num_tokens - 1 + i` is node i of `tree`.
    """

    turn: Turn
    drafts: MergedTree
    tree: TokenTree
    row: Row

    @property
    def root_node(self) -> int:
        """The row's node that is the root of `tree`."""
        return self.turn.num_tokens - 1


class Composer:
    """Numbers the steps of an epoch and carries commits over to the next message."""

    def __init__(self) -> None:
        self.epoch = 0
        self._next_step = 0
        self._commits: list[KVCommit] = []

    def new_epoch(self) -> None:
        """The ranks forget everything; so does this."""
        self.epoch += 1
        self._next_step = 0
        self._commits.clear()

    def commit(self, request_id: int, kept_nodes: Sequence[int]) -> None:
        """Tell the ranks with the next message which nodes of a row were committed."""
        self._commits.append(KVCommit(request_id, tuple(kept_nodes)))

    def compose(
        self,
        group: int,
        grants: Sequence[Grant],
        drafts: Mapping[int, MergedTree],
        returned: Returned,
    ) -> tuple[StepMessage, list[StepRow]]:
        """The next message, and its rows for when the reply is back."""
        rows = [_step_row(grant, drafts.get(grant.turn.request.request_id)) for grant in grants]
        fresh = [grant for grant in grants if not grant.turn.request.known_to_ranks]
        message = StepMessage(
            epoch=self.epoch,
            step_id=self._next_step,
            group=group,
            commits=tuple(self._commits),
            trims=returned.trims,
            releases=returned.releases,
            new=tuple(_new_request(grant) for grant in fresh),
            rows=tuple(row.row for row in rows),
        )
        for grant in fresh:
            grant.turn.request.known_to_ranks = True
        self._next_step += 1
        self._commits.clear()
        return message, rows


def _step_row(grant: Grant, drafts: MergedTree | None) -> StepRow:
    turn = grant.turn
    drafts = MergedTree() if drafts is None else drafts.cut(grant.num_drafts, len(drafts))
    *before, last = turn.request.tokens[turn.start : turn.start + turn.num_tokens]
    tree = drafts.tree.rooted(last)
    scored = _prompt_ids_to_score(turn)
    row = Row(
        request_id=turn.request.request_id,
        start=turn.start,
        tree=tree if not before else TokenTree.chain([*before, last]),
        new_blocks=grant.new_blocks,
        first_output=0 if scored else turn.num_tokens - (1 if turn.draws else 0),
        scored_ids=scored,
        draws=tuple(NodeDraws(one.node + 1, one.draws) for one in drafts.draws),
    )
    return StepRow(turn, drafts, tree, row)


def _prompt_ids_to_score(turn: Turn) -> tuple[int, ...]:
    """The prompt tokens that follow the turn's own, if their log-probabilities are wanted."""
    request = turn.request
    if not request.wants_prompt_logprobs:
        return ()
    end = min(turn.start + turn.num_tokens + 1, request.prompt_len)
    return tuple(request.tokens[turn.start + 1 : end])


def _new_request(grant: Grant) -> NewRequest:
    request = grant.turn.request
    asked = request.asked
    wanted = [k for k in (asked.num_logprobs, asked.prompt_logprobs) if k is not None]
    new = NewRequest(
        request_id=request.request_id,
        prompt_len=request.prompt_len,
        sampling=asked.sampling,
        banned_early=request.banned_early,
        num_logprobs=max(wanted) if wanted else None,
        reused_blocks=grant.reused_blocks,
        grammar=asked.grammar,
        verification=request.verification,
    )
    return replace(new, token_ids=tuple(request.tokens)) if new.needs_text else new
