"""After a step: verify each row, commit its tokens, and tell what there is to emit.

The row-by-row half of the loop. Mutates the request, the KV ledger and the composer's list of
commits; knows nothing of tasks, queues or time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from actors.errors import ProtocolError
from actors.messages import RowResult, StepReply
from actors.request_manager.budget import Acceptance
from actors.request_manager.commit import commit
from actors.request_manager.composer import Composer, StepRow
from actors.request_manager.generation import NO_TOP, GenerationEvent, TokenLogprob
from actors.request_manager.guessing import Accepted
from actors.request_manager.kv_ledger import KVLedger
from actors.request_manager.ports import StepDraws
from actors.request_manager.prefix_reuse import PrefixReuse
from actors.request_manager.records import Tally
from actors.request_manager.request import Request, State
from actors.request_manager.verify import Verified, verify
from actors.tree import CONTEXT


def results_by_request(rows: Sequence[StepRow], reply: StepReply) -> dict[int, RowResult]:
    """The reply's results by request id.

    Raises:
        ProtocolError: if a row with outputs has no result of its size. Found out before anything
            is committed: what is committed but not emitted would be lost to the reader.
    """
    results = {result.request_id: result for result in reply.results}
    for row in rows:
        if row.row.num_outputs:
            result = results.get(row.row.request_id)
            if result is None or len(result.drawn_ids) != row.row.num_outputs:
                raise ProtocolError(f"no result for the row of request {row.row.request_id}")
            if row.turn.request.wants_logprobs and len(result.logprobs) != row.row.num_outputs:
                raise ProtocolError(f"no log-probabilities for request {row.row.request_id}")
    return results


def accepted_drafts(
    rows: Sequence[StepRow], verified: Sequence[Verified | None]
) -> dict[int, Accepted]:
    """What became of the drafts of the rows that were verified, by request id."""
    return {
        row.row.request_id: Accepted(row.drafts, [node - 1 for node in outcome.accepted])
        for row, outcome in zip(rows, verified, strict=True)
        if outcome is not None
    }


def step_draws(
    rows: Sequence[StepRow],
    verified: Sequence[Verified | None],
    results: Mapping[int, RowResult],
) -> list[StepDraws]:
    """What the LLM drew for each of the rows that were verified, where drafters may learn from it.

    To be called when the rows are settled.
    """
    draws = []
    for row, outcome in zip(rows, verified, strict=True):
        request = row.turn.request
        wishes = request.asked.speculation
        if outcome is None or not wishes.enabled or request.asked.internal:
            continue
        first, result = _tree_output(row), results[row.row.request_id]
        drawn = {
            output - first - 1: token  # the root is no draft
            for output, token in enumerate(result.drawn_ids)
            if output >= first and output not in result.failed_outputs
        }
        root = row.turn.start + row.turn.num_tokens - 1
        is_over = request.state is State.FINISHED
        draws.append(
            StepDraws(
                request.tokens,
                request.prompt_len,
                root,
                row.drafts.tree,
                drawn,
                is_over,
                wishes.drafters,
                request.shows_drafts,
            )
        )
    return draws


def verify_row(row: StepRow, results: Mapping[int, RowResult]) -> Verified | None:
    """What a row brings; None for one that drew nothing, such as a chunk within a prompt."""
    if not row.turn.draws or results[row.row.request_id].undrawn:
        return None
    first, result = _tree_output(row), results[row.row.request_id]
    verified = verify(row.tree, result.drawn_ids[first:])
    return verified.before({output - first for output in result.failed_outputs})


class Settler:
    """Applies the outcome of a step to requests, ledger and composer."""

    def __init__(
        self,
        ledger: KVLedger,
        reuse: PrefixReuse,
        composer: Composer,
        acceptance: Acceptance,
    ) -> None:
        self._ledger = ledger
        self._reuse = reuse
        self._composer = composer
        self._acceptance = acceptance

    def settle(
        self, row: StepRow, verified: Verified | None, result: RowResult | None, tally: Tally
    ) -> GenerationEvent | None:
        """Commit what a row brought.

        Returns:
            The event to emit, without the final statistics; None if there is nothing to tell.
        """
        request = row.turn.request
        if request.wants_prompt_logprobs and result is not None:
            request.prompt_logprobs.extend(_scored(row, result))
        if verified is None:
            runs_again = result is not None and result.undrawn
            self._keep(request, range(row.turn.num_tokens - runs_again))
            self._publish(request)
            return None
        tally.num_draws += 1
        self._keep(
            request,
            [*range(row.root_node), *(row.root_node + node for node in verified.kept_nodes)],
        )
        prompt_logprobs = request.take_prompt_logprobs() if request.wants_prompt_logprobs else ()
        committed = commit(request.rules, request.output, verified.token_ids)
        num_accepted = min(len(verified.accepted), len(committed.token_ids))
        self._count(row, verified, num_accepted, _forbidden(row, result), tally)
        tally.num_committed += len(committed.token_ids)
        request.output = committed.state
        request.tokens.extend(committed.token_ids)
        self._publish(request)
        if request.state is State.PREFILL:
            request.transition(State.DECODE)
        return GenerationEvent(
            token_ids=committed.token_ids,
            visible_bytes=committed.state.visible_bytes,
            logprobs=_logprobs(row, verified, result, committed.token_ids),
            prompt_logprobs=prompt_logprobs,
            finish_reason=committed.state.finish_reason,
        )

    def _keep(self, request: Request, nodes: Sequence[int]) -> None:
        self._ledger.commit(request.request_id, len(nodes))
        self._composer.commit(request.request_id, nodes)

    def _publish(self, request: Request) -> None:
        """Offer the blocks that are full by now for reuse."""
        committed = self._ledger.account(request.request_id).committed
        self._ledger.publish(request.request_id, self._reuse.offered(request, committed))

    def _count(
        self,
        row: StepRow,
        verified: Verified,
        num_accepted: int,
        forbidden: Collection[int],
        tally: Tally,
    ) -> None:
        if row.turn.request.num_output > 0:
            row.turn.request.stats.record(
                len(row.drafts), num_accepted, tally.draft_s, tally.step_s, tally.forward_s
            )
            tally.depths.count(
                row.drafts.tree,
                [{proposal.drafter for proposal in node} for node in row.drafts.proposals],
                [node - 1 for node in verified.accepted],
            )
        if len(row.drafts):
            tally.accepted_depths.append(num_accepted)
        tally.num_forbidden += len(forbidden)
        accepted, committed = set(verified.accepted), set(verified.accepted[:num_accepted])
        drafts = row.drafts
        for node, parent in enumerate(drafts.tree.parents):
            is_accepted = node + 1 in accepted  # in the row's tree the root comes first
            was_tried = parent == CONTEXT or parent + 1 in accepted
            proposals = drafts.proposals[node]
            for drafter, _, score in proposals:
                tally.drafted[drafter] += 1
                tally.accepted[drafter] += node + 1 in committed
                if was_tried and node + 1 not in forbidden:
                    depth = drafts.tree.depths[node]
                    self._acceptance.observe(drafter, depth, score, is_accepted)


def _tree_output(row: StepRow) -> int:
    """The output of the row that belongs to the root of its tree."""
    return row.root_node - row.row.first_output


def _forbidden(row: StepRow, result: RowResult | None) -> set[int]:
    """Drafts in the row's tree that a grammar forbids: no sign of how good they are."""
    failed = result.failed_outputs if result is not None else ()
    first = _tree_output(row)
    return {output - first for output in failed if output > first}


def _scored(row: StepRow, result: RowResult) -> list[TokenLogprob]:
    """The log-probabilities of the prompt tokens that were asked for in the row."""
    wanted = row.turn.request.asked.prompt_logprobs
    return [
        _token_logprob(token, result, output, wanted)
        for output, token in enumerate(row.row.scored_ids)
    ]


def _logprobs(
    row: StepRow, verified: Verified, result: RowResult | None, token_ids: Sequence[int]
) -> tuple[TokenLogprob, ...]:
    """The log-probabilities of what was committed: each token was drawn at the node before it."""
    wanted = row.turn.request.asked.num_logprobs
    if wanted is None or result is None:
        return ()
    first = _tree_output(row)
    return tuple(
        _token_logprob(token, result, first + node, wanted)
        for token, node in zip(token_ids, verified.kept_nodes, strict=False)
    )


def _token_logprob(token: int, result: RowResult, output: int, num_top: int | None) -> TokenLogprob:
    top = result.top[output].first(num_top or 0) if result.top else NO_TOP
    return TokenLogprob(token, result.logprobs[output], top)
