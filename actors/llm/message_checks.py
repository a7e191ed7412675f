"""What a step message may ask of a model; what it may ask of KV blocks the block tables know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.errors import ProtocolError
from actors.llm.block_tables import RequestKV
from actors.messages import LLMDescription, Row, StepMessage
from actors.verification import Rule


def check_message(message: StepMessage, description: LLMDescription) -> None:
    """Refuse tokens, positions and parameters that the model does not have.

    Raises:
        ProtocolError: naming the request at fault.
    """
    for new in message.new:
        biased = tuple(token for token, _ in new.sampling.logit_bias)
        _check_ids(new.request_id, new.banned_early + biased + new.token_ids, description)
        if new.needs_text and len(new.token_ids) < new.prompt_len:
            raise ProtocolError(f"request {new.request_id} is announced without its text")
    for row in message.rows:
        _check_ids(row.request_id, row.tree.token_ids + row.scored_ids, description)
        if not len(row.tree):
            raise ProtocolError(f"request {row.request_id} has an empty row")
        if row.start + max(row.tree.depths) >= description.max_context_tokens:
            raise ProtocolError(f"request {row.request_id} runs beyond the model's context")
        if not row.tree.is_chain and len(row.tree) > description.max_nodes_per_row:
            raise ProtocolError(f"request {row.request_id} has a tree of {len(row.tree)} nodes")
        if not 0 <= row.first_output <= len(row.tree):
            raise ProtocolError(f"request {row.request_id} has no node {row.first_output}")
        if row.scored_ids and len(row.scored_ids) > row.num_outputs:
            raise ProtocolError(f"request {row.request_id} scores more tokens than it has outputs")
        for one in row.draws:
            _check_ids(row.request_id, one.draws.support_ids, description)
            if not 0 <= one.node < len(row.tree):
                raise ProtocolError(f"request {row.request_id} has draws at no node")


def check_draws(rows: Sequence[Row], requests: Mapping[int, RequestKV]) -> None:
    """Refuse draws that a request's verification rule cannot weigh.

    Args:
        requests: all that the rows name, by id.

    Raises:
        ProtocolError: naming the request at fault.
    """
    for row in rows:
        if not row.draws:
            continue
        rule = requests[row.request_id].new.verification
        if not rule.weighs_draws:
            raise ProtocolError(f"request {row.request_id} has draws under {rule.value}")
        if rule is Rule.MSS and any(one.draws.repeats for one in row.draws):
            raise ProtocolError(f"request {row.request_id} has a token drawn twice")


def _check_ids(request_id: int, ids: Sequence[int], description: LLMDescription) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < description.vocab_size:
        raise ProtocolError(f"request {request_id} names a token that the model does not have")
