"""Verification rules and draws to protobuf and back, for steps and drafts alike.

Weights travel as float32, which holds them exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.errors import ProtocolError
from actors.verification import Draws, NodeDraws, Rule
from protos import speculation_pb2 as pb


def encode_rule(rule: Rule) -> str:
    """The `verification` field of a rule: empty for the one that most requests have."""
    return "" if rule is Rule.COUPLED else rule.value


def decode_rule(name: str) -> Rule:
    """Raises ProtocolError if there is no such rule."""
    try:
        return Rule(name) if name else Rule.COUPLED
    except ValueError:
        raise ProtocolError(f"no verification rule {name!r}") from None


def encode_draws(draws: Sequence[NodeDraws], first: int) -> list[pb.NodeDraws]:
    """The `draws` field of a message that numbers the context's first node `first`."""
    return [
        pb.NodeDraws(
            node=one.node + first,
            token_ids=one.draws.token_ids,
            support_ids=one.draws.support_ids,
            weights=one.draws.weights,
        )
        for one in draws
    ]


def decode_draws(
    encoded: Sequence[pb.NodeDraws], first: int, num_nodes: int
) -> tuple[NodeDraws, ...]:
    """Raises ProtocolError if there is no such node, or they cannot have been drawn so."""
    for one in encoded:
        if one.node - first >= num_nodes:
            raise ProtocolError(f"NodeDraws.node is {one.node} of {num_nodes} nodes")
    return tuple(
        NodeDraws(
            one.node - first,
            Draws(tuple(one.token_ids), tuple(one.support_ids), tuple(one.weights)),
        )
        for one in encoded
    )
