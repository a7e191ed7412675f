"""The shell of an LLM rank: a gRPC server around anything that runs steps.

Steps run one at a time, in the order in which they arrive. Step ids, epochs and repeats are the
rank's own business; so is what a step does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import grpc

from actors import wire
from actors.messages import LLMDescription, StepMessage, StepReply
from actors.model_server import ModelServer, run_for_peer
from actors.model_thread import ModelThread
from actors.tls import TlsFiles
from protos import speculation_pb2 as pb
from protos import speculation_pb2_grpc as services

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


class LLMActor(ModelServer):
    """One rank as an actor: loads on construction, then serves; see `ModelServer`.

    Args:
        load: gives the rank; called on the thread that will run its steps.
    """

    def __init__(
        self,
        load: Callable[[], Rank],
        ports: Iterable[int] = (0,),
        tls: TlsFiles | None = None,
    ) -> None:
        thread = ModelThread("the rank")
        rank = thread.run(load)
        description = wire.encode_description(thread.run(rank.describe))
        register = functools.partial(
            services.add_VerifierServicer_to_server, _Verifier(rank, description, thread)
        )
        super().__init__({VERIFIER: register}, thread, ports, tls)


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
            step = functools.partial(self._step, request)
            yield run_for_peer(self._thread, step, context, "step")

    def _step(self, request: pb.StepMessage) -> pb.StepReply:
        return wire.encode_reply(self._rank.step(wire.decode_step(request)))
