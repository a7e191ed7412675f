"""Draft messages come back from the wire as they went in, and are checked on both sides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verification_messages import node_draws, rules

from actors import draft_wire
from actors.drafts import (
    DraftModelDescription,
    DraftReply,
    DraftRequest,
    DraftSession,
    SessionDraft,
)
from actors.errors import ProtocolError
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from protos import speculation_pb2 as pb

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
ids = st.lists(uint32, max_size=6).map(tuple)
scores = st.floats(0, 1, width=32)
samplings = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    min_tokens=st.integers(0, 2**31 - 1),
    seed=uint64,
)
sessions = st.lists(
    st.builds(
        DraftSession,
        session_id=uint64,
        keep_tokens=uint32,
        token_ids=ids,
        prompt_len=uint32,
        sampling=samplings,
        max_nodes=uint32,
        max_depth=uint32,
        banned_early=ids,
        least_probability=scores,
        verification=rules,
    ),
    max_size=4,
).map(tuple)
requests = st.builds(DraftRequest, sessions, st.floats(0, 1e9))
trees = st.one_of(
    st.lists(uint32, max_size=9).map(TokenTree.chain),
    st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=8).map(TokenTree.from_paths),
)


@st.composite
def session_drafts(draw: st.DrawFn) -> SessionDraft:
    tree = draw(trees)
    size = len(tree)
    values = tuple(draw(st.lists(scores, min_size=size, max_size=size)))
    return SessionDraft(draw(uint64), draw(st.booleans()), tree, values, draw(node_draws(-1, size)))


replies = st.builds(
    DraftReply, st.lists(session_drafts(), max_size=4).map(tuple), uint64, uint32, uint32
)
descriptions = st.builds(
    DraftModelDescription,
    name=st.text(max_size=9),
    vocab_size=uint32,
    llm_weights_hash=st.text(max_size=9),
    weights_version=uint64,
    num_parameters=uint64,
)


@given(requests)
def test_request(request: DraftRequest) -> None:
    encoded = draft_wire.encode_request(request).SerializeToString()
    assert draft_wire.decode_request(pb.DraftRequest.FromString(encoded)) == request


@given(replies)
def test_reply(reply: DraftReply) -> None:
    encoded = draft_wire.encode_reply(reply).SerializeToString()
    assert draft_wire.decode_reply(pb.DraftReply.FromString(encoded)) == reply


@given(descriptions)
def test_description(description: DraftModelDescription) -> None:
    encoded = draft_wire.encode_description(description).SerializeToString()
    decoded = draft_wire.decode_description(pb.DraftModelDescription.FromString(encoded))
    assert decoded == description


def session(**changes: object) -> DraftSession:
    fields = {
        "session_id": 1,
        "keep_tokens": 0,
        "token_ids": (5,),
        "prompt_len": 1,
        "sampling": SamplingParams(),
        "max_nodes": 4,
        "max_depth": 2,
    }
    return DraftSession(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (DraftRequest((session(),) * 4097), r"DraftRequest\.sessions"),
        (DraftRequest((session(banned_early=(1,) * 1025),)), r"DraftSession\.banned_early"),
        (DraftRequest((session(token_ids=(1,) * (2**20 + 1)),)), r"DraftSession\.token_ids"),
        (DraftRequest((session(max_nodes=-1),)), "DraftRequest"),
        (DraftRequest((session(token_ids=(2**32,)),)), "DraftRequest"),
    ],
)
def test_requests_out_of_bounds_are_not_sent(request_: DraftRequest, name: str) -> None:
    with pytest.raises(ProtocolError, match=name):
        draft_wire.encode_request(request_)


def test_scores_and_nodes_go_together() -> None:
    with pytest.raises(ProtocolError, match=r"Draft\.scores has 1 for 2 nodes"):
        draft_wire.encode_reply(
            DraftReply((SessionDraft(1, tree=TokenTree.chain([1, 2]), scores=(0.5,)),))
        )
    with pytest.raises(ProtocolError, match=r"Draft\.scores has 0 for 1 nodes"):
        draft_wire.decode_reply(pb.DraftReply(drafts=[pb.Draft(token_ids=[1])]))


@pytest.mark.parametrize(
    ("draft", "name"),
    [
        (pb.Draft(token_ids=[1, 2], parents=[0, 2], scores=[1, 1]), r"Draft\.parents\[1\]"),
        (pb.Draft(token_ids=[1, 1], parents=[0, 0], scores=[1, 1]), "repeats token"),
        (pb.Draft(token_ids=[1], parents=[0, 0], scores=[1]), r"Draft\.parents has 2"),
    ],
)
def test_malformed_trees_are_refused(draft: pb.Draft, name: str) -> None:
    with pytest.raises(ProtocolError, match=name):
        draft_wire.decode_reply(pb.DraftReply(drafts=[draft]))


def test_sampling_out_of_range_is_refused_by_name() -> None:
    wrong = pb.DraftSession(token_ids=[1], sampling=pb.SamplingParams(temperature=-1, top_p=1))
    with pytest.raises(ProtocolError, match=r"SamplingParams\.temperature"):
        draft_wire.decode_request(pb.DraftRequest(sessions=[wrong]))
