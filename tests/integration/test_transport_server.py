"""A rank's server over real sockets: limits, malformed messages, health, ports."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from echo_rank import PATIENCE_S, EchoRank, connected, serving, step
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from actors import rpc, wire
from actors.errors import PeerError, PeerUnavailable, ProtocolError, UnavailableError
from actors.llm.actor import VERIFIER, LLMActor
from actors.messages import Row, StepMessage
from actors.tree import TokenTree
from protos import speculation_pb2 as pb
from protos import speculation_pb2_grpc as services

pytestmark = pytest.mark.integration


@pytest.fixture
def rank() -> EchoRank:
    return EchoRank()


@pytest.fixture
def address(rank: EchoRank) -> Iterator[str]:
    with serving(rank) as address:
        yield address


# ---------------------------------------------------------------- limits and malformed messages


def oversize_step() -> StepMessage:
    """Within every bound on entries, above the size of a message."""
    row = Row(1, 0, TokenTree.chain([5]), new_blocks=(2**32 - 1,) * 65536)
    return StepMessage(1, 0, rows=(row,) * 64)


async def test_an_oversize_step_is_not_sent(rank: EchoRank, address: str) -> None:
    async with connected(address) as client:
        with pytest.raises(ProtocolError, match="Sent message larger than max"):
            await client.step(oversize_step())
        assert rank.steps == []
        await client.restore()
        assert (await client.step(step(0))).step_id == 0


async def test_an_oversize_step_is_not_received(rank: EchoRank, address: str) -> None:
    oversize = wire.encode_step(oversize_step())
    assert oversize.ByteSize() > rpc.MAX_MESSAGE_BYTES
    assert await status_of(address, oversize) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert rank.steps == []


async def test_a_malformed_step_is_refused_by_name(rank: EchoRank, address: str) -> None:
    malformed = pb.StepMessage(rows=[pb.Row(token_ids=[1, 2], parents=[0, 9])])
    assert await status_of(address, malformed) is grpc.StatusCode.INVALID_ARGUMENT
    assert rank.steps == []


async def status_of(address: str, message: pb.StepMessage) -> grpc.StatusCode:
    """How the stream ends on which `message` is sent by someone who checks nothing."""
    async with grpc.aio.insecure_channel(address) as channel:
        stream = services.VerifierStub(channel).Steps(timeout=PATIENCE_S)
        await stream.write(message)
        return await stream.code()


class MalformedReplies(services.VerifierServicer):
    def Steps(self, requests: Iterator[pb.StepMessage], context: object) -> Iterator[pb.StepReply]:
        for request in requests:
            result = pb.RowResult(drawn_ids=[1, 2], logprobs=[0.5])
            yield pb.StepReply(epoch=request.epoch, step_id=request.step_id, results=[result])


class Cancels(services.VerifierServicer):
    def Steps(
        self, requests: Iterator[pb.StepMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.StepReply]:
        next(requests)
        context.abort(grpc.StatusCode.CANCELLED, "gone")
        yield pb.StepReply()


class EndsEarly(services.VerifierServicer):
    def Steps(self, requests: Iterator[pb.StepMessage], context: object) -> Iterator[pb.StepReply]:
        next(requests)
        return iter(())


@pytest.mark.parametrize(
    ("misbehaving", "error", "text"),
    [
        (MalformedReplies, ProtocolError, r"RowResult\.logprobs"),
        (Cancels, PeerUnavailable, "gone"),
        (EndsEarly, PeerUnavailable, "ended the stream"),
    ],
)
async def test_a_peer_that_misbehaves_fails_the_steps_in_flight(
    misbehaving: type[services.VerifierServicer], error: type[PeerError], text: str
) -> None:
    server = rpc.Server(
        {VERIFIER: lambda it: services.add_VerifierServicer_to_server(misbehaving(), it)}
    )
    async with connected(server.start()) as client:
        with pytest.raises(error, match=text):
            await client.step(step(0))
    server.stop(0.0)


# ---------------------------------------------------------------- the server


def test_health_and_reflection_answer(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", VERIFIER):
            request = health_pb2.HealthCheckRequest(service=service)
            answer = health.Check(request, timeout=PATIENCE_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        assert VERIFIER in database.get_services()
        assert "Row" in database.FindFileContainingSymbol(VERIFIER).SerializeToString().decode(
            errors="replace"
        )


def test_a_server_that_stops_says_so_to_who_watches(rank: EchoRank) -> None:
    server = LLMActor(lambda: rank)
    with grpc.insecure_channel(server.start()) as channel:
        request = health_pb2.HealthCheckRequest(service=VERIFIER)
        states = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=PATIENCE_S)
        assert next(states).status == health_pb2.HealthCheckResponse.SERVING
        stopping = threading.Thread(target=server.stop, args=(0.5,))
        stopping.start()
        assert next(states).status == health_pb2.HealthCheckResponse.NOT_SERVING
        stopping.join()


def test_the_first_free_port_is_taken(rank: EchoRank, address: str) -> None:
    taken = int(address.split(":")[1])
    with pytest.raises(UnavailableError, match="no free port"):
        LLMActor(lambda: rank, ports=(taken,)).start()
    server = LLMActor(lambda: rank, ports=(taken, 0))
    host, port = server.start().split(":")
    server.stop(0.0)
    assert host == "127.0.0.1"
    assert int(port) not in (0, taken)


async def test_the_actor_loads_on_the_thread_that_runs_the_steps(rank: EchoRank) -> None:
    def load() -> EchoRank:
        rank.threads.add(threading.get_ident())
        return rank

    actor = LLMActor(load)
    assert actor.ping() is None
    address = actor.start()
    assert actor.start() == actor.ping() == address
    async with connected(address) as client:
        await client.step(step(0))
    actor.stop(0.0)
    assert len(rank.threads) == 1
