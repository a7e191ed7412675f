"""The dataclasses of `actors.messages` to protobuf messages and back, exactly.

Both directions check the bounds that the proto declares (`actors.bounds`) and that the arrays of
a message fit together, so that neither end has to trust the other. A chain, the most frequent
tree, is sent without `parents`; in other trees they are shifted by one, so that 0 is the context.

`float` fields (log-probabilities and seconds) travel as float32: values that float32 can hold come
back unchanged. What the numbers *mean* (does this request exist, is this block free) is for the
receiver to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from actors.bounds import check_bounds
from actors.errors import InputError, ProtocolError
from actors.messages import (
    MAX_GRAMMAR_BYTES,
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
from actors.verification_wire import decode_draws, decode_rule, encode_draws, encode_rule
from protos import speculation_pb2 as pb


def encode_step(message: StepMessage) -> pb.StepMessage:
    """Raises ProtocolError if `message` breaks a bound or a number does not fit its field."""
    for new in message.new:
        _check_grammar(new.grammar)
    with naming("StepMessage"):
        encoded = pb.StepMessage(
            epoch=message.epoch,
            step_id=message.step_id,
            group=message.group,
            commits=[
                pb.KVCommit(request_id=commit.request_id, kept_nodes=commit.kept_nodes)
                for commit in message.commits
            ],
            trims=message.trims,
            releases=message.releases,
            new=[_encode_new(new) for new in message.new],
            rows=[_encode_row(row) for row in message.rows],
        )
    check_bounds(encoded)
    return encoded


def decode_step(encoded: pb.StepMessage) -> StepMessage:
    """Raises ProtocolError if the message breaks a bound or a tree is malformed."""
    check_bounds(encoded)
    return StepMessage(
        epoch=encoded.epoch,
        step_id=encoded.step_id,
        group=encoded.group,
        commits=tuple(
            KVCommit(commit.request_id, tuple(commit.kept_nodes)) for commit in encoded.commits
        ),
        trims=tuple(encoded.trims),
        releases=tuple(encoded.releases),
        new=tuple(_decode_new(new) for new in encoded.new),
        rows=tuple(_decode_row(row) for row in encoded.rows),
    )


def encode_reply(reply: StepReply) -> pb.StepReply:
    """Raises ProtocolError if `reply` breaks a bound or a number does not fit its field."""
    with naming("StepReply"):
        encoded = pb.StepReply(
            epoch=reply.epoch,
            step_id=reply.step_id,
            results=[_encode_result(result) for result in reply.results],
            forward_s=reply.forward_s,
            sample_s=reply.sample_s,
            noise_hits=reply.noise_hits,
            noise_misses=reply.noise_misses,
            started_at=reply.started_at,
            waited_s=reply.waited_s,
            streamed_bytes=reply.streamed_bytes,
        )
    check_bounds(encoded)
    return encoded


def decode_reply(encoded: pb.StepReply) -> StepReply:
    """Raises ProtocolError if the reply breaks a bound or its arrays do not fit together."""
    check_bounds(encoded)
    return StepReply(
        epoch=encoded.epoch,
        step_id=encoded.step_id,
        results=tuple(_decode_result(result) for result in encoded.results),
        forward_s=encoded.forward_s,
        sample_s=encoded.sample_s,
        noise_hits=encoded.noise_hits,
        noise_misses=encoded.noise_misses,
        started_at=encoded.started_at,
        waited_s=encoded.waited_s,
        streamed_bytes=encoded.streamed_bytes,
    )


def encode_description(description: LLMDescription) -> pb.LLMDescription:
    """Raises ProtocolError if a number does not fit its field."""
    with naming("LLMDescription"):
        return pb.LLMDescription(**asdict(description))


def decode_description(encoded: pb.LLMDescription) -> LLMDescription:
    return LLMDescription(
        **{field.name: getattr(encoded, field.name) for field in encoded.DESCRIPTOR.fields}
    )


def encode_sampling(sampling: SamplingParams) -> pb.SamplingParams:
    """Raises ValueError if a number does not fit its field."""
    return pb.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        min_tokens=sampling.min_tokens,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        bias_ids=[token for token, _ in sampling.logit_bias],
        biases=[bias for _, bias in sampling.logit_bias],
    )


def decode_sampling(encoded: pb.SamplingParams) -> SamplingParams:
    """Raises ProtocolError naming the parameter that is out of range."""
    if len(encoded.bias_ids) != len(encoded.biases):
        raise ProtocolError("SamplingParams.bias_ids and .biases differ in length")
    try:
        return SamplingParams(
            temperature=encoded.temperature,
            top_k=encoded.top_k,
            top_p=encoded.top_p,
            min_p=encoded.min_p,
            min_tokens=encoded.min_tokens,
            seed=encoded.seed,
            repetition_penalty=encoded.repetition_penalty,
            frequency_penalty=encoded.frequency_penalty,
            presence_penalty=encoded.presence_penalty,
            logit_bias=tuple(zip(encoded.bias_ids, encoded.biases, strict=True)),
        )
    except InputError as error:
        raise ProtocolError(f"SamplingParams.{error.message}") from error


def encode_parents(tree: TokenTree) -> Sequence[int]:
    """The `parents` field of a tree: empty for a chain, else shifted by one."""
    return () if tree.is_chain else [parent + 1 for parent in tree.parents]


def decode_tree(token_ids: Sequence[int], parents: Sequence[int], owner: str) -> TokenTree:
    """The tree of the message type `owner`. Raises ProtocolError if it is malformed."""
    try:
        if not parents:
            return TokenTree.chain(token_ids)
        return TokenTree(tuple(token_ids), tuple(parent - 1 for parent in parents))
    except ValueError as error:
        raise ProtocolError(f"{owner}.{error}") from error


def _encode_new(new: NewRequest) -> pb.NewRequest:
    return pb.NewRequest(
        request_id=new.request_id,
        prompt_len=new.prompt_len,
        sampling=encode_sampling(new.sampling),
        banned_early=new.banned_early,
        num_logprobs=new.num_logprobs,
        reused_blocks=new.reused_blocks,
        token_ids=new.token_ids,
        grammar=new.grammar,
        verification=encode_rule(new.verification),
    )


def _check_grammar(source: str) -> None:
    if len(source.encode()) > MAX_GRAMMAR_BYTES:
        raise ProtocolError(f"NewRequest.grammar has more than {MAX_GRAMMAR_BYTES} bytes")


def _decode_new(encoded: pb.NewRequest) -> NewRequest:
    _check_grammar(encoded.grammar)
    return NewRequest(
        request_id=encoded.request_id,
        prompt_len=encoded.prompt_len,
        sampling=decode_sampling(encoded.sampling),
        banned_early=tuple(encoded.banned_early),
        num_logprobs=encoded.num_logprobs if encoded.HasField("num_logprobs") else None,
        reused_blocks=tuple(encoded.reused_blocks),
        token_ids=tuple(encoded.token_ids),
        grammar=encoded.grammar,
        verification=decode_rule(encoded.verification),
    )


def _encode_row(row: Row) -> pb.Row:
    encoded = pb.Row(
        request_id=row.request_id,
        start=row.start,
        token_ids=row.tree.token_ids,
        parents=encode_parents(row.tree),
        new_blocks=row.new_blocks,
        first_output=row.first_output,
        scored_ids=row.scored_ids,
        draws=encode_draws(row.draws, 0),
    )
    _check_row(encoded)
    return encoded


def _decode_row(encoded: pb.Row) -> Row:
    _check_row(encoded)
    return Row(
        request_id=encoded.request_id,
        start=encoded.start,
        tree=decode_tree(encoded.token_ids, encoded.parents, "Row"),
        new_blocks=tuple(encoded.new_blocks),
        first_output=encoded.first_output,
        scored_ids=tuple(encoded.scored_ids),
        draws=decode_draws(encoded.draws, 0, len(encoded.token_ids)),
    )


def _check_row(row: pb.Row) -> None:
    num_outputs = len(row.token_ids) - row.first_output
    if num_outputs < 0:
        raise ProtocolError(f"Row.first_output is {row.first_output} of {len(row.token_ids)} nodes")
    if len(row.scored_ids) > num_outputs:
        raise ProtocolError(f"Row.scored_ids has {len(row.scored_ids)} for {num_outputs} outputs")


def _encode_result(result: RowResult) -> pb.RowResult:
    if len(result.top) not in (0, len(result.drawn_ids)):
        raise ProtocolError(
            f"RowResult.top has {len(result.top)} for {len(result.drawn_ids)} nodes"
        )
    num_top = len(result.top[0].token_ids) if result.top else None
    for top in result.top:
        if not len(top.token_ids) == len(top.logprobs) == num_top:
            raise ProtocolError("RowResult.top has lists of different lengths")
    encoded = pb.RowResult(
        request_id=result.request_id,
        drawn_ids=result.drawn_ids,
        logprobs=result.logprobs,
        num_top=num_top,
        top_ids=[token for top in result.top for token in top.token_ids],
        top_logprobs=[logprob for top in result.top for logprob in top.logprobs],
        failed_outputs=result.failed_outputs,
        undrawn=result.undrawn,
    )
    _check_result(encoded)
    return encoded


def _decode_result(encoded: pb.RowResult) -> RowResult:
    _check_result(encoded)
    return RowResult(
        request_id=encoded.request_id,
        drawn_ids=tuple(encoded.drawn_ids),
        logprobs=tuple(encoded.logprobs),
        top=_decode_top(encoded) if encoded.HasField("num_top") else (),
        failed_outputs=tuple(encoded.failed_outputs),
        undrawn=encoded.undrawn,
    )


def _decode_top(encoded: pb.RowResult) -> tuple[TopLogprobs, ...]:
    token_ids, logprobs = tuple(encoded.top_ids), tuple(encoded.top_logprobs)
    ends = (encoded.num_top * (node + 1) for node in range(len(encoded.drawn_ids)))
    spans = (slice(end - encoded.num_top, end) for end in ends)
    return tuple(TopLogprobs(token_ids[span], logprobs[span]) for span in spans)


def _check_result(result: pb.RowResult) -> None:
    nodes = len(result.drawn_ids)
    if len(result.logprobs) not in (0, nodes):
        raise ProtocolError(f"RowResult.logprobs has {len(result.logprobs)} for {nodes} nodes")
    for name, values in (("top_ids", result.top_ids), ("top_logprobs", result.top_logprobs)):
        if len(values) != result.num_top * nodes:
            raise ProtocolError(
                f"RowResult.{name} has {len(values)} for {nodes} nodes of {result.num_top}"
            )


@contextmanager
def naming(message: str) -> Iterator[None]:
    """protobuf refuses a number that does not fit its field with a bare ValueError."""
    try:
        yield
    except ValueError as error:
        raise ProtocolError(f"{message}: {error}") from error
