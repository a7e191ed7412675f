"""The request manager's way to the LLM ranks, over gRPC.

One ordered stream of steps to every rank, kept open; every message goes to all of them and the
last rank's reply is the step's. Several steps may be in flight. The first stream that breaks fails
all steps in flight and every later one, until `restore` has put new ranks in place.

`grpc.aio` rather than the blocking API on threads: a step of nothing takes 0.17 ms there and back
against 0.33 ms, as each reply reaches the event loop without passing through another thread. A
client belongs to the event loop in which it was made.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence

from actors import rpc, wire
from actors.errors import PeerError, PeerTimeout, PeerUnavailable, ProtocolError
from actors.messages import LLMDescription, StepMessage, StepReply
from actors.rpc_stream import OrderedStream
from actors.tls import TlsFiles
from protos import speculation_pb2 as pb
from protos import speculation_pb2_grpc as services

StepKey = tuple[int, int]
"""(epoch, step_id)"""


class LLMClient:
    """The ranks of one LLM, seen as one; implements `ports.LLM`. Make it inside the running loop.

    Args:
        addresses: `host:port` of every rank; the last one is the last pipeline stage.
        respawn: brings the ranks back up and returns their addresses; raises PeerError.
        step_timeout_s: how long a step may take, from `step` to its reply.
        connect_timeout_s: how long a rank may take to answer for the first time.
        on_reply: is told of the replies of all ranks, with the rank's number; None for nobody.
        tls: this side's certificate; None for none.

    Attributes:
        descriptions: what each rank said of itself when it was asked last.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        respawn: Callable[[], Awaitable[Sequence[str]]],
        step_timeout_s: float,
        connect_timeout_s: float = 30.0,
        on_reply: Callable[[int, StepReply], None] | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._respawn = respawn
        self._step_timeout_s = step_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._on_reply = on_reply
        self.descriptions: list[LLMDescription] = []
        self._waiting: dict[StepKey, asyncio.Future[StepReply | PeerError]] = {}
        self._failure: asyncio.Future[PeerError] = self._loop.create_future()
        self._ranks = self._open(addresses)

    async def describe(self) -> LLMDescription:
        """What the last rank serves. Raises PeerError if one of the ranks does not answer."""
        self._require_streams()
        answers = [await rank.describe(self._connect_timeout_s) for rank in self._ranks]
        self.descriptions = answers
        return answers[-1]

    async def step(self, message: StepMessage) -> StepReply:
        """Send one step; steps run in the order in which this is called.

        Raises:
            PeerTimeout: no reply within `step_timeout_s`.
            PeerUnavailable: a rank is gone, or the client was closed.
            StaleEpoch, ProtocolError, PeerError: as the rank says.
        """
        self._require_streams()
        key = (message.epoch, message.step_id)
        if key in self._waiting:
            raise ProtocolError(f"step {message.step_id} is in flight already")
        encoded = wire.encode_step(message)
        self._waiting[key] = self._loop.create_future()
        for rank in self._ranks:
            rank.send(encoded)
        try:
            async with asyncio.timeout(self._step_timeout_s):
                answer = await self._waiting[key]
        except TimeoutError:
            late = f"no reply to step {message.step_id} within {self._step_timeout_s:g} s"
            raise PeerTimeout(late) from None
        finally:
            del self._waiting[key]
        if isinstance(answer, PeerError):
            raise answer
        return answer

    async def lost(self) -> PeerError:
        """Wait until a stream breaks, as all do whose rank's process ends; returns why."""
        return _copy(await asyncio.shield(self._failure))

    async def restore(self) -> None:
        """Drop the streams, have the ranks brought back, and reconnect.

        Raises:
            PeerError: they cannot be brought back, or do not answer.
        """
        await self.close()
        self._ranks = self._open(await self._respawn())
        self._failure = self._loop.create_future()
        await self.describe()
        self._require_streams()

    async def close(self) -> None:
        """End all streams; steps in flight fail with PeerUnavailable, and so do later ones."""
        self._fail(PeerUnavailable("the streams to the LLM ranks are closed"))
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            await rank.close()

    def _open(self, addresses: Sequence[str]) -> list[_RankStream]:
        last = len(addresses) - 1
        return [
            _RankStream(
                address,
                self._resolve if rank == last else functools.partial(self._note, rank),
                self._fail,
                self._tls,
            )
            for rank, address in enumerate(addresses)
        ]

    def _require_streams(self) -> None:
        if self._failure.done():
            raise _copy(self._failure.result())

    def _resolve(self, encoded: pb.StepReply) -> None:
        """Hand a reply to whoever waits for it; one that comes too late is dropped."""
        reply = wire.decode_reply(encoded)
        if self._on_reply is not None:
            self._on_reply(len(self._ranks) - 1, reply)
        waiting = self._waiting.get((reply.epoch, reply.step_id))
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def _note(self, rank: int, encoded: pb.StepReply) -> None:
        """Replies of all ranks but the last only tell when the rank did its part."""
        if self._on_reply is not None:
            self._on_reply(rank, wire.decode_reply(encoded))

    def _fail(self, error: PeerError) -> None:
        if not self._failure.done():
            self._failure.set_result(error)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(_copy(error))


class _RankStream:
    """One rank: its channel, and the stream of steps; see `OrderedStream`."""

    def __init__(
        self,
        address: str,
        on_reply: Callable[[pb.StepReply], None],
        on_end: Callable[[PeerError], None],
        tls: TlsFiles | None,
    ) -> None:
        self._address = address
        self._channel = rpc.open_channel(address, tls)
        self._stub = services.VerifierStub(self._channel)
        self._steps = OrderedStream[pb.StepMessage, pb.StepReply](
            self._stub.Steps, address, on_reply, on_end
        )

    async def describe(self, timeout_s: float) -> LLMDescription:
        request = pb.DescribeRequest()
        answer = await rpc.call(self._stub.Describe, request, self._address, timeout_s)
        return wire.decode_description(answer)

    def send(self, message: pb.StepMessage) -> None:
        self._steps.send(message)

    async def close(self) -> None:
        await self._steps.close()
        await self._channel.close()


def _copy(error: PeerError) -> PeerError:
    """Each caller raises an error of its own: tracebacks grow on the one that is raised."""
    return type(error)(*error.args)
