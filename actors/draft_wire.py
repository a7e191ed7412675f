"""The dataclasses of `actors.drafts` to protobuf messages and back, as `actors.wire` does it.

Both directions check bounds and that arrays fit together. Scores travel as float32.
"""

from __future__ import annotations

from dataclasses import asdict

from actors.bounds import check_bounds
from actors.drafts import (
    DraftModelDescription,
    DraftReply,
    DraftRequest,
    DraftSession,
    SessionDraft,
)
from actors.errors import ProtocolError
from actors.verification_wire import decode_draws, decode_rule, encode_draws, encode_rule
from actors.wire import decode_sampling, decode_tree, encode_parents, encode_sampling, naming
from protos import speculation_pb2 as pb


def encode_request(request: DraftRequest) -> pb.DraftRequest:
    """Raises ProtocolError if `request` breaks a bound or a number does not fit its field."""
    with naming("DraftRequest"):
        encoded = pb.DraftRequest(
            sessions=[_encode_session(one) for one in request.sessions],
            tokens_per_s=request.tokens_per_s,
        )
    check_bounds(encoded)
    return encoded


def decode_request(encoded: pb.DraftRequest) -> DraftRequest:
    """Raises ProtocolError if the request breaks a bound or a parameter is out of range."""
    check_bounds(encoded)
    sessions = tuple(_decode_session(one) for one in encoded.sessions)
    return DraftRequest(sessions, encoded.tokens_per_s)


def encode_reply(reply: DraftReply) -> pb.DraftReply:
    """Raises ProtocolError if `reply` breaks a bound or a number does not fit its field."""
    with naming("DraftReply"):
        encoded = pb.DraftReply(
            drafts=[_encode_draft(draft) for draft in reply.drafts],
            weights_version=reply.weights_version,
            noise_hits=reply.noise_hits,
            noise_misses=reply.noise_misses,
        )
    check_bounds(encoded)
    return encoded


def decode_reply(encoded: pb.DraftReply) -> DraftReply:
    """Raises ProtocolError if the reply breaks a bound or a tree is malformed."""
    check_bounds(encoded)
    return DraftReply(
        tuple(_decode_draft(draft) for draft in encoded.drafts),
        encoded.weights_version,
        encoded.noise_hits,
        encoded.noise_misses,
    )


def encode_description(description: DraftModelDescription) -> pb.DraftModelDescription:
    """Raises ProtocolError if a number does not fit its field."""
    with naming("DraftModelDescription"):
        return pb.DraftModelDescription(**asdict(description))


def decode_description(encoded: pb.DraftModelDescription) -> DraftModelDescription:
    return DraftModelDescription(
        **{field.name: getattr(encoded, field.name) for field in encoded.DESCRIPTOR.fields}
    )


def _encode_session(session: DraftSession) -> pb.DraftSession:
    return pb.DraftSession(
        session_id=session.session_id,
        keep_tokens=session.keep_tokens,
        token_ids=session.token_ids,
        prompt_len=session.prompt_len,
        sampling=encode_sampling(session.sampling),
        banned_early=session.banned_early,
        max_nodes=session.max_nodes,
        max_depth=session.max_depth,
        least_probability=session.least_probability,
        verification=encode_rule(session.verification),
    )


def _decode_session(encoded: pb.DraftSession) -> DraftSession:
    return DraftSession(
        session_id=encoded.session_id,
        keep_tokens=encoded.keep_tokens,
        token_ids=tuple(encoded.token_ids),
        prompt_len=encoded.prompt_len,
        sampling=decode_sampling(encoded.sampling),
        max_nodes=encoded.max_nodes,
        max_depth=encoded.max_depth,
        banned_early=tuple(encoded.banned_early),
        least_probability=encoded.least_probability,
        verification=decode_rule(encoded.verification),
    )


def _encode_draft(draft: SessionDraft) -> pb.Draft:
    encoded = pb.Draft(
        session_id=draft.session_id,
        unknown_session=draft.unknown_session,
        token_ids=draft.tree.token_ids,
        parents=encode_parents(draft.tree),
        scores=draft.scores,
        draws=encode_draws(draft.draws, 1),
    )
    _check_scores(encoded)
    return encoded


def _decode_draft(encoded: pb.Draft) -> SessionDraft:
    _check_scores(encoded)
    return SessionDraft(
        session_id=encoded.session_id,
        unknown_session=encoded.unknown_session,
        tree=decode_tree(encoded.token_ids, encoded.parents, "Draft"),
        scores=tuple(encoded.scores),
        draws=decode_draws(encoded.draws, 1, len(encoded.token_ids)),
    )


def _check_scores(draft: pb.Draft) -> None:
    if len(draft.scores) != len(draft.token_ids):
        raise ProtocolError(
            f"Draft.scores has {len(draft.scores)} for {len(draft.token_ids)} nodes"
        )
