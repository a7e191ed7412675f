"""The shell of a draft model: a gRPC server around anything that drafts.

Requests are served one at a time on one thread that lives as long as the server, since torch's
OpenMP pool belongs to the thread that calls it. This module knows neither torch nor Ray: an
`SSMActor` is a plain object that a Ray actor can be made of.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import grpc

from actors import draft_wire, rpc
from actors.bounds import check_bounds
from actors.drafts import DraftModelDescription, DraftReply, DraftRequest
from actors.errors import PeerError
from actors.model_thread import ModelThread
from protos import speculation_pb2 as pb
from protos import speculation_pb2_grpc as services

logger = logging.getLogger(__name__)

SPECULATOR = pb.DESCRIPTOR.services_by_name["Speculator"].full_name

Answer = TypeVar("Answer")


class Drafting(Protocol):
    """A draft model with its sessions. All methods are called on one thread only."""

    def describe(self) -> DraftModelDescription:
        """What it is; asked once, before the first request."""

    def draft(self, request: DraftRequest) -> DraftReply:
        """Bring sessions up to date and draft. Raises ProtocolError."""

    def release(self, session_ids: Sequence[int]) -> None:
        """Forget sessions."""


class SSMActor:
    """A draft model as an actor: loads on construction, then serves.

    Args:
        load: gives the draft model; called on the thread that will run it.
        host: address to listen on; peers must be able to reach it.
        ports: the first one that is free is used; 0 is any.
    """

    def __init__(
        self,
        load: Callable[[], Drafting],
        host: str = rpc.LOOPBACK,
        ports: Iterable[int] = (0,),
    ) -> None:
        self._thread = ModelThread("the draft model")
        model = self._thread.run(load)
        description = self._thread.run(model.describe)
        speculator = _Speculator(model, draft_wire.encode_description(description), self._thread)
        register = functools.partial(services.add_SpeculatorServicer_to_server, speculator)
        self._server = rpc.Server({SPECULATOR: register})
        self._host = host
        self._ports = tuple(ports)
        self._address: str | None = None

    def start(self) -> str:
        """Serve; returns `host:port`. A second call returns the same address."""
        if self._address is None:
            self._address = self._server.start(self._host, self._ports)
        return self._address

    def stop(self, grace_s: float = 5.0) -> None:
        """End all calls within `grace_s` seconds; a request that still runs is left to finish."""
        self._server.stop(grace_s)
        self._thread.close()


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
            yield self._run(functools.partial(self._draft, request), context)

    def _draft(self, request: pb.DraftRequest) -> pb.DraftReply:
        return draft_wire.encode_reply(self._model.draft(draft_wire.decode_request(request)))

    def Release(self, request: pb.ReleaseRequest, context: grpc.ServicerContext) -> pb.ReleaseReply:
        def release() -> pb.ReleaseReply:
            check_bounds(request)
            self._model.release(request.session_ids)
            return pb.ReleaseReply()

        return self._run(release, context)

    def _run(self, work: Callable[[], Answer], context: grpc.ServicerContext) -> Answer:
        try:
            return self._thread.run(work)
        except PeerError as error:
            rpc.abort(context, error)
            raise
        except Exception as error:  # whatever it is, it ends this call and not the actor
            logger.exception("drafting failed")
            rpc.abort(context, PeerError(f"drafting failed: {type(error).__name__}: {error}"))
            raise
