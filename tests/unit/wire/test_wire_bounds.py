"""Every repeated field has one bound, and it holds in both directions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from actors import wire
from actors.bounds import NODE_FIELDS, check_bounds, declared_bound
from actors.errors import ProtocolError
from actors.messages import KVCommit, NewRequest, Row, RowResult, StepMessage, StepReply
from actors.messages import TopLogprobs as Top
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from protos import speculation_pb2 as pb

MAX_PER_NODE = 64


def all_messages() -> Iterator[Descriptor]:
    pending = list(pb.DESCRIPTOR.message_types_by_name.values())
    while pending:
        message = pending.pop()
        yield message
        pending.extend(message.nested_types)


def repeated_fields() -> list[FieldDescriptor]:
    return [f for message in all_messages() for f in message.fields if f.is_repeated]


def name_of(field: FieldDescriptor) -> str:
    return f"{field.containing_type.name}.{field.name}"


def test_the_walk_finds_the_fields_that_matter() -> None:
    names = {name_of(field) for field in repeated_fields()}
    assert {"StepMessage.rows", "Row.parents", "RowResult.top_ids", "Draft.scores"} <= names


@pytest.mark.parametrize("field", repeated_fields(), ids=name_of)
def test_every_repeated_field_has_exactly_one_bound(field: FieldDescriptor) -> None:
    items, per_node = declared_bound(field)
    assert (items > 0) != (per_node > 0)
    assert per_node <= MAX_PER_NODE


@pytest.mark.parametrize("field", repeated_fields(), ids=name_of)
def test_per_node_bounds_have_nodes_to_count(field: FieldDescriptor) -> None:
    siblings = {other.name for other in field.containing_type.fields}
    nodes = siblings & set(NODE_FIELDS)
    assert len(nodes) <= 1
    assert nodes or declared_bound(field)[1] == 0


def test_no_map_and_no_bytes_can_hide_a_vector() -> None:
    for message in all_messages():
        assert not message.GetOptions().map_entry
        for field in message.fields:
            assert field.type != FieldDescriptor.TYPE_BYTES, name_of(field)


@pytest.mark.parametrize("field", repeated_fields(), ids=name_of)
def test_the_bound_of_every_field_is_enforced(field: FieldDescriptor) -> None:
    items, per_node = declared_bound(field)
    owner = getattr(pb, field.containing_type.name)
    entry = 1 if field.message_type is None else getattr(pb, field.message_type.name)()
    nodes_field = next((f.name for f in field.containing_type.fields if f.name in NODE_FIELDS), "")
    full = owner(**{nodes_field: [1, 1]}) if per_node else owner()
    getattr(full, field.name).extend([entry] * (items + 2 * per_node))
    check_bounds(full)
    getattr(full, field.name).extend([entry])
    with pytest.raises(ProtocolError, match=name_of(field)):
        check_bounds(full)


def test_bounds_reach_into_inner_messages() -> None:
    row = pb.Row(token_ids=[1, 2], parents=[0, 1, 1])
    with pytest.raises(ProtocolError, match=r"Row\.parents has 3 entries, at most 2"):
        check_bounds(pb.StepMessage(rows=[pb.Row(), row]))
    new = pb.NewRequest(sampling=pb.SamplingParams(bias_ids=range(1025)))
    with pytest.raises(ProtocolError, match=r"SamplingParams\.bias_ids has 1025"):
        check_bounds(pb.StepMessage(new=[new]))


SAMPLING = SamplingParams()
LONG_STEPS = {
    "StepMessage.releases": StepMessage(0, 0, releases=tuple(range(4097))),
    "StepMessage.new": StepMessage(0, 0, new=(NewRequest(1, 1, SAMPLING),) * 4097),
    "NewRequest.banned_early": StepMessage(
        0, 0, new=(NewRequest(1, 1, SAMPLING, tuple(range(1025))),)
    ),
    "KVCommit.kept_nodes": StepMessage(0, 0, commits=(KVCommit(1, tuple(range(65537))),)),
    "Row.token_ids": StepMessage(0, 0, rows=(Row(1, 0, TokenTree.chain(range(65537))),)),
}
LONG_STEPS["NewRequest.grammar"] = StepMessage(
    0, 0, new=(NewRequest(1, 1, SAMPLING, grammar="x" * 65537),)
)
LONG_REPLIES = {
    "StepReply.results": StepReply(0, 0, (RowResult(1, ()),) * 4097),
    "RowResult.top_ids": StepReply(
        0, 0, (RowResult(1, (7,), top=(Top(tuple(range(65)), (0.0,) * 65),)),)
    ),
}


@pytest.mark.parametrize("name", LONG_STEPS)
def test_long_steps_are_not_sent(name: str) -> None:
    with pytest.raises(ProtocolError, match=name):
        wire.encode_step(LONG_STEPS[name])


@pytest.mark.parametrize("name", LONG_REPLIES)
def test_long_replies_are_not_sent(name: str) -> None:
    with pytest.raises(ProtocolError, match=name):
        wire.encode_reply(LONG_REPLIES[name])


def test_long_messages_are_not_accepted() -> None:
    with pytest.raises(ProtocolError, match=r"StepMessage\.releases"):
        wire.decode_step(pb.StepMessage(releases=range(4097)))
    result = pb.RowResult(drawn_ids=[7], num_top=65, top_ids=range(65), top_logprobs=[0.0] * 65)
    with pytest.raises(ProtocolError, match=r"RowResult\.top_ids"):
        wire.decode_reply(pb.StepReply(results=[result]))
