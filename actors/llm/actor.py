"""The shell of an LLM rank: a gRPC server around anything that runs steps.

Steps run one at a time, in the order in which they arrive, on one thread that lives as long as the
server: torch's OpenMP pool belongs to the thread that calls it, and a client that comes back on a
new stream queues behind the step of its old one. Step ids, epochs and repeats are the rank's own
business; so is what a step does. This module knows neither torch nor Ray: an `LLMActor` is a plain
object that a Ray actor can be made of.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import grpc

from actors import rpc, wire
from actors.errors import PeerError
from actors.messages import LLMDescription, StepMessage, StepReply
from actors.model_thread import ModelThread
from protos import speculation_pb2 as pb
from protos import speculation_pb2_grpc as services

logger = logging.getLogger(__name__)

THREAD = "the rank"

VERIFIER = pb.DESCRIPTOR.services_by_name["Verifier"].full_name


class Rank(Protocol):
    """One rank of the LLM. Both methods are called on one thread only."""

    def describe(self) -> LLMDescription:
        """What the rank serves; asked once, before the first step."""

    def step(self, message: StepMessage) -> StepReply:
        """Run one step.

        Raises:
            StaleEpoch: the message belongs to an epoch that the rank has left.
            ProtocolError: the message does not fit what the rank holds.
        """


class LLMServer:
    """The Verifier service of one rank, with health and reflection.

    Args:
        rank: what runs the steps.
        thread: where it runs them; a new one by default. Stopped together with the server.
    """

    def __init__(self, rank: Rank, thread: ModelThread | None = None) -> None:
        self._thread = thread or ModelThread(THREAD)
        description = self._thread.run(rank.describe)
        verifier = _Verifier(rank, wire.encode_description(description), self._thread)
        self._server = rpc.Server(
            {VERIFIER: lambda server: services.add_VerifierServicer_to_server(verifier, server)}
        )

    def start(self, host: str = rpc.LOOPBACK, ports: Iterable[int] = (0,)) -> str:
        """Serve on the first free port of `ports` (0: any); returns `host:port`.

        Raises:
            UnavailableError: if none is free.
        """
        return self._server.start(host, ports)

    def stop(self, grace_s: float) -> None:
        """End all calls within `grace_s` seconds; a step that still runs is left to finish."""
        self._server.stop(grace_s)
        self._thread.close()


class _Verifier(services.VerifierServicer):
    def __init__(self, rank: Rank, description: pb.LLMDescription, thread: ModelThread) -> None:
        self._rank = rank
        self._description = description
        self._thread = thread

    def Describe(
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.LLMDescription:
        return self._description

    def Steps(
        self, requests: Iterator[pb.StepMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.StepReply]:
        """One reply for each step, in order. The first step that fails ends the stream.

        Steps behind the one that runs wait in the transport, so none of them is run after a
        failure.
        """
        for request in requests:
            try:
                reply = self._run(request)
            except PeerError as error:
                logger.warning("step refused: %s: %s", type(error).__name__, error)
                rpc.abort(context, error)
            except Exception as error:  # whatever it is, it ends this stream and not the rank
                logger.exception("step failed")
                rpc.abort(context, PeerError(f"step failed: {type(error).__name__}: {error}"))
            yield reply

    def _run(self, request: pb.StepMessage) -> pb.StepReply:
        message = wire.decode_step(request)
        return wire.encode_reply(self._thread.run(functools.partial(self._rank.step, message)))


class LLMActor:
    """One rank as an actor: loads on construction, then serves.

    Args:
        load: gives the rank; called on the thread that will run its steps.
        host: address to listen on; peers must be able to reach it.
        ports: the first one that is free is used; 0 is any.
    """

    def __init__(
        self,
        load: Callable[[], Rank],
        host: str = rpc.LOOPBACK,
        ports: Iterable[int] = (0,),
    ) -> None:
        thread = ModelThread(THREAD)
        self._server = LLMServer(thread.run(load), thread)
        self._host = host
        self._ports = tuple(ports)
        self._address: str | None = None

    def start(self) -> str:
        """Serve; returns `host:port`. A second call returns the same address."""
        if self._address is None:
            self._address = self._server.start(self._host, self._ports)
        return self._address

    def ping(self) -> str | None:
        """Answers while the process lives: the address served at, None before `start`."""
        return self._address

    def stop(self, grace_s: float = 5.0) -> None:
        self._server.stop(grace_s)
