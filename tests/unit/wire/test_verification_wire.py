"""What the wire refuses of rules and draws."""

from __future__ import annotations

import pytest

from actors import draft_wire, wire
from actors.errors import ProtocolError
from actors.messages import NewRequest, Row, StepMessage
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from actors.verification import Draws, NodeDraws, Rule
from protos import speculation_pb2 as pb

GOOD = {"token_ids": [1], "support_ids": [1, 2], "weights": [0.5, 0.5]}


def test_the_rule_of_most_requests_takes_no_bytes():
    new = NewRequest(1, 4, SamplingParams())
    assert wire.encode_step(StepMessage(0, 0, new=(new,))).new[0].verification == ""


def test_an_unknown_rule_is_refused():
    encoded = wire.encode_step(StepMessage(0, 0, new=(NewRequest(1, 4, SamplingParams()),)))
    encoded.new[0].verification = "hope"
    with pytest.raises(ProtocolError, match="no verification rule 'hope'"):
        wire.decode_step(encoded)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"node": 2}, r"NodeDraws\.node is 2 of 2 nodes"),
        ({"weights": [0.5]}, "2 tokens and 1 weights"),
        ({"support_ids": [], "weights": []}, "0 tokens"),
        ({"support_ids": list(range(65)), "weights": [1.0] * 65}, r"NodeDraws\.support_ids"),
        ({"weights": [0.5, 0.0]}, "not above 0"),
        ({"weights": [0.5, float("inf")]}, "not above 0"),
        ({"weights": [0.5, float("nan")]}, "not above 0"),
        ({"support_ids": [1, 1]}, "names a token twice"),
        ({"token_ids": [3]}, "could not be drawn"),
    ],
)
def test_draws_that_cannot_be_are_refused(change, reason):
    row = pb.Row(token_ids=[5, 6], draws=[pb.NodeDraws(**(GOOD | change))])
    with pytest.raises(ProtocolError, match=reason):
        wire.decode_step(pb.StepMessage(rows=[row]))


def test_draws_of_drafts_are_numbered_from_the_last_committed_token():
    draft = pb.Draft(draws=[pb.NodeDraws(node=0, **GOOD)])
    (decoded,) = draft_wire.decode_reply(pb.DraftReply(drafts=[draft])).drafts
    assert decoded.draws == (NodeDraws(-1, Draws((1,), (1, 2), (0.5, 0.5))),)
    with pytest.raises(ProtocolError, match=r"NodeDraws\.node"):
        draft_wire.decode_reply(pb.DraftReply(drafts=[pb.Draft(draws=[pb.NodeDraws(node=1)])]))


def test_a_row_has_no_more_draws_than_drafters_may_bring():
    draws = tuple(NodeDraws(0, Draws((1,), (1,), (1.0,))) for _ in range(9))
    with pytest.raises(ProtocolError, match=r"Row\.draws has 9"):
        wire.encode_step(StepMessage(0, 0, rows=(Row(1, 0, TokenTree.chain([5]), draws=draws),)))


def test_which_rules_weigh_draws():
    assert {rule for rule in Rule if rule.weighs_draws} == {Rule.MSS, Rule.SPECTR}
