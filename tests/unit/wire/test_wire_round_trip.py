"""Every message comes back from the wire as it went in, through the bytes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verification_messages import node_draws, rules

from actors import wire
from actors.errors import ProtocolError
from actors.messages import (
    KVCommit,
    LLMDescription,
    NewRequest,
    Row,
    RowResult,
    StepMessage,
    StepReply,
    TopLogprobs,
)
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from protos import speculation_pb2 as pb

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
token = st.integers(0, 2**32 - 1)
float32 = st.floats(width=32, allow_nan=False)
seconds = st.floats(0, 1e6, width=32)


def tuples(entries: st.SearchStrategy, max_size: int = 6) -> st.SearchStrategy:
    return st.lists(entries, max_size=max_size).map(tuple)


trees = st.one_of(
    tuples(token, 20).map(TokenTree.chain),
    st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=8).map(TokenTree.from_paths),
)
samplings = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    min_tokens=st.integers(0, 2**31 - 1),
    seed=uint64,
    repetition_penalty=st.floats(0, 100, exclude_min=True),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(token, st.floats(-100, 100), max_size=6).map(
        lambda bias: tuple(bias.items())
    ),
)
new_requests = st.builds(
    NewRequest,
    request_id=uint64,
    prompt_len=uint32,
    sampling=samplings,
    banned_early=tuples(token),
    num_logprobs=st.none() | st.integers(0, 64),
    reused_blocks=tuples(uint32),
    token_ids=tuples(token),
    grammar=st.text(st.characters(codec="utf-8")),
    verification=rules,
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    tree = draw(trees)
    first_output = draw(st.integers(0, len(tree)))
    return Row(
        request_id=draw(uint64),
        start=draw(uint32),
        tree=tree,
        new_blocks=draw(tuples(uint32)),
        first_output=first_output,
        scored_ids=draw(tuples(token, len(tree) - first_output)),
        draws=draw(node_draws(0, len(tree))),
    )


@st.composite
def row_results(draw: st.DrawFn) -> RowResult:
    drawn_ids = draw(tuples(token))
    nodes, width = len(drawn_ids), draw(st.none() | st.integers(0, 4))

    def exactly(entries: st.SearchStrategy, size: int) -> tuple:
        return tuple(draw(st.lists(entries, min_size=size, max_size=size)))

    return RowResult(
        request_id=draw(uint64),
        drawn_ids=drawn_ids,
        logprobs=exactly(float32, nodes) if draw(st.booleans()) else (),
        top=()
        if width is None
        else tuple(
            TopLogprobs(exactly(token, width), exactly(float32, width)) for _ in range(nodes)
        ),
        failed_outputs=draw(tuples(uint32, nodes)),
        undrawn=draw(st.booleans()),
    )


step_messages = st.builds(
    StepMessage,
    epoch=uint64,
    step_id=uint64,
    group=uint32,
    commits=tuples(st.builds(KVCommit, request_id=uint64, kept_nodes=tuples(uint32))),
    trims=tuples(uint64),
    releases=tuples(uint64),
    new=tuples(new_requests),
    rows=tuples(rows()),
)
step_replies = st.builds(
    StepReply,
    epoch=uint64,
    step_id=uint64,
    results=tuples(row_results()),
    forward_s=seconds,
    sample_s=seconds,
    noise_hits=uint32,
    noise_misses=uint32,
    started_at=st.floats(0, 1e12),
    waited_s=seconds,
)
text = st.text(st.characters(codec="utf-8"))
descriptions = st.builds(
    LLMDescription,
    model_id=text,
    vocab_size=uint32,
    max_context_tokens=uint32,
    num_kv_blocks=uint32,
    kv_block_tokens=uint32,
    num_parameters=uint64,
    weights_hash=text,
    dtype=text,
    device=text,
    backend=text,
    batch_invariant=st.booleans(),
    max_nodes_per_row=uint32,
    num_held_parameters=uint64,
    load_s=st.floats(0, 1e6),
    peak_memory_bytes=uint64,
    held_bytes=uint64,
    quantization=text,
)


@given(step_messages)
def test_step_message(message: StepMessage) -> None:
    encoded = wire.encode_step(message).SerializeToString()
    assert wire.decode_step(pb.StepMessage.FromString(encoded)) == message


@given(step_replies)
def test_step_reply(reply: StepReply) -> None:
    encoded = wire.encode_reply(reply).SerializeToString()
    assert wire.decode_reply(pb.StepReply.FromString(encoded)) == reply


@given(descriptions)
def test_description(description: LLMDescription) -> None:
    encoded = wire.encode_description(description).SerializeToString()
    assert wire.decode_description(pb.LLMDescription.FromString(encoded)) == description


@given(trees)
def test_only_a_chain_is_sent_without_parents(tree: TokenTree) -> None:
    encoded = wire.encode_step(StepMessage(0, 0, rows=(Row(1, 0, tree),))).rows[0]
    assert list(encoded.parents) == ([] if tree.is_chain else [p + 1 for p in tree.parents])


def test_logprobs_that_are_no_number_survive() -> None:
    result = RowResult(1, (4, 5), (-math.inf, math.nan))
    encoded = wire.encode_reply(StepReply(0, 0, (result,)))
    decoded = wire.decode_reply(encoded).results[0].logprobs
    assert decoded[0] == -math.inf
    assert math.isnan(decoded[1])


@pytest.mark.parametrize(
    ("row", "names"),
    [
        (pb.Row(token_ids=[5, 6, 7], parents=[0, 1]), r"Row\.token_ids"),
        (pb.Row(token_ids=[5, 6, 7], parents=[0, 1, 3]), r"Row\.parents\[2\]"),
        (pb.Row(token_ids=[5, 6, 6], parents=[0, 1, 1]), r"Row\.node 2"),
        (pb.Row(token_ids=[5, 6], first_output=3), r"Row\.first_output"),
        (pb.Row(token_ids=[5, 6], first_output=1, scored_ids=[1, 2]), r"Row\.scored_ids"),
    ],
)
def test_malformed_rows_are_refused(row: pb.Row, names: str) -> None:
    with pytest.raises(ProtocolError, match=names):
        wire.decode_step(pb.StepMessage(rows=[row]))


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (pb.RowResult(drawn_ids=[1, 2], logprobs=[0.5]), r"RowResult\.logprobs"),
        (pb.RowResult(drawn_ids=[1, 2], num_top=2, top_ids=[1, 2, 3]), r"RowResult\.top_ids"),
        (
            pb.RowResult(drawn_ids=[1], num_top=1, top_ids=[1], top_logprobs=[]),
            r"RowResult\.top_logprobs",
        ),
        (pb.RowResult(drawn_ids=[1], top_ids=[1]), r"RowResult\.top_ids"),
    ],
)
def test_malformed_results_are_refused(result: pb.RowResult, names: str) -> None:
    with pytest.raises(ProtocolError, match=names):
        wire.decode_reply(pb.StepReply(results=[result]))


@pytest.mark.parametrize(
    "result",
    [
        RowResult(1, (1, 2), logprobs=(0.5,)),
        RowResult(1, (1, 2), top=(TopLogprobs((3,), (0.5,)),)),
        RowResult(1, (1, 2), top=(TopLogprobs((3,), (0.5,)), TopLogprobs((), ()))),
        RowResult(1, (1,), top=(TopLogprobs((3, 4), (0.5,)),)),
    ],
)
def test_results_that_do_not_fit_together_are_not_sent(result: RowResult) -> None:
    with pytest.raises(ProtocolError, match="RowResult"):
        wire.encode_reply(StepReply(0, 0, (result,)))


def test_sampling_out_of_range_is_refused_by_name() -> None:
    new = pb.NewRequest(sampling=pb.SamplingParams(temperature=-1.0, top_p=1.0))
    with pytest.raises(ProtocolError, match=r"SamplingParams\.temperature"):
        wire.decode_step(pb.StepMessage(new=[new]))


def test_absent_sampling_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"SamplingParams\.top_p"):
        wire.decode_step(pb.StepMessage(new=[pb.NewRequest(request_id=1)]))


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_that_do_not_fit_are_not_sent(number: int) -> None:
    with pytest.raises(ProtocolError, match="StepMessage"):
        wire.encode_step(StepMessage(0, number))


def test_a_bias_without_its_token_is_refused() -> None:
    wrong = pb.SamplingParams(bias_ids=[1, 2], biases=[0.5])
    with pytest.raises(ProtocolError, match="bias_ids"):
        wire.decode_sampling(wrong)
