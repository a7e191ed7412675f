"""The shell of a draft model: a gRPC server around anything that drafts.

Requests are served one at a time, in the order in which they arrive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import grpc

from actors import draft_wire
from actors.bounds import check_bounds
from actors.drafts import DraftModelDescription, DraftReply, DraftRequest
from actors.model_server import ModelServer, run_for_peer
from actors.model_thread import ModelThread
from actors.tls import TlsFiles
from protos import speculation_pb2 as pb
from protos import speculation_pb2_grpc as services

SPECULATOR = pb.DESCRIPTOR.services_by_name["Speculator"].full_name


class Drafting(Protocol):
    """A draft model with its sessions. All methods are called on one thread only."""

    def describe(self) -> DraftModelDescription:
        """What it is; asked once, before the first request."""

    def draft(self, request: DraftRequest) -> DraftReply:
        """Bring sessions up to date and draft. Raises ProtocolError."""

    def release(self, session_ids: Sequence[int]) -> None:
        """Forget sessions."""


class SSMActor(ModelServer):
    """A draft model as an actor: loads on construction, then serves; see `ModelServer`.

    Args:
        load: gives the draft model; called on the thread that will run it.
    """

    def __init__(
        self,
        load: Callable[[], Drafting],
        ports: Iterable[int] = (0,),
        tls: TlsFiles | None = None,
    ) -> None:
        thread = ModelThread("the draft model")
        model = thread.run(load)
        description = draft_wire.encode_description(thread.run(model.describe))
        register = functools.partial(
            services.add_SpeculatorServicer_to_server, _Speculator(model, description, thread)
        )
        super().__init__({SPECULATOR: register}, thread, ports, tls)


class _Speculator(services.SpeculatorServicer):
    def __init__(
        self, model: Drafting, description: pb.DraftModelDescription, thread: ModelThread
    ) -> None:
        self._model = model
        self._description = description
        self._thread = thread

    def Describe(
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DraftModelDescription:
        return self._description

    def Drafts(
        self, requests: Iterator[pb.DraftRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.DraftReply]:
        """One reply for each request, in order. The first request that fails ends the stream."""
        for request in requests:
            draft = functools.partial(self._draft, request)
            yield run_for_peer(self._thread, draft, context, "drafting")

    def Release(self, request: pb.ReleaseRequest, context: grpc.ServicerContext) -> pb.ReleaseReply:
        release = functools.partial(self._release, request)
        return run_for_peer(self._thread, release, context, "release")

    def _draft(self, request: pb.DraftRequest) -> pb.DraftReply:
        return draft_wire.encode_reply(self._model.draft(draft_wire.decode_request(request)))

    def _release(self, request: pb.ReleaseRequest) -> pb.ReleaseReply:
        check_bounds(request)
        self._model.release(request.session_ids)
        return pb.ReleaseReply()
