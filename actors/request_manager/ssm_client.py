"""The request manager's way to a draft model, over gRPC.

Sends what is new of each request, reads trees. Fails open: a draft model that is late, dead or
wrong costs drafts and nothing else. One that is gone, or late many times running, is brought back
in the background while requests run on without it; then its sessions are sent again from their
token ids. The manager holds every token, so there is nothing else to recover.

A client belongs to the event loop in which it was made.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from actors import draft_wire, rpc
from actors.drafts import DraftModelDescription, DraftReply, DraftRequest, SessionDraft
from actors.errors import (
    PeerError,
    PeerTimeout,
    PeerUnavailable,
    ProtocolError,
    TreeServeError,
)
from actors.request_manager.backoff import Backoff
from actors.request_manager.draft_sessions import DraftSessions
from actors.request_manager.drafter_names import SSM
from actors.request_manager.ports import Draft, DraftTask
from actors.rpc_stream import OrderedStream
from actors.tls import TlsFiles
from protos import speculation_pb2 as pb
from protos import speculation_pb2_grpc as services

logger = logging.getLogger(__name__)

MAX_LATE = 20
"""A draft model that misses so many deadlines running, or one by as much, counts as lost."""

RESPAWN_BACKOFF_S = (0.0, 1.0, 5.0, 20.0)
"""Waits before each attempt to bring it back; the last one repeats."""

STEADY_S = 30.0
"""One that is lost sooner after it was back waits longer than the last time."""

CONNECT_TIMEOUT_S = 30.0
RELEASE_TIMEOUT_S = 5.0


class SSMDrafter:
    """One draft model as a drafter.

    Args:
        address: `host:port` of its server.
        respawn: brings it back up and returns its address; raises TreeServeError.
        deadline_s: how long one round of drafting may take.
        name: what its drafts are counted by.
        note_noise: is told with each answer how often a position's noise was at hand, and how
            often the draft model had to compute it.
        tls: this side's certificate; None for none.

    Attributes:
        weights_version: of the weights that drew the last trees; None before the first.
    """

    def __init__(
        self,
        address: str,
        respawn: Callable[[], Awaitable[str]],
        deadline_s: float,
        name: str = SSM,
        note_noise: Callable[[int, int], None] | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self.name = name
        self.weights_version: int | None = None
        self._respawn = respawn
        self._deadline_s = deadline_s
        self._note_noise = note_noise
        self._tls = tls
        self._peer: _Peer | None = self._open(address)
        self._sessions = DraftSessions()
        self._num_late = 0
        clock = asyncio.get_running_loop().time
        self._backoff = Backoff(RESPAWN_BACKOFF_S, STEADY_S, clock)
        self._released: list[int] = []
        self._recovery: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None

    @property
    def is_away(self) -> bool:
        """True while it is being brought back."""
        return self._peer is None

    async def describe(self) -> DraftModelDescription:
        """What the draft model says of itself. Raises PeerError."""
        if self._peer is None:
            raise PeerUnavailable("the draft model is away")
        return await self._peer.describe()

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        """Drafts for the tasks whose sessions are ready.

        None while the draft model is away, or has not answered a request that was given up.

        Raises:
            PeerError: it did not answer, or not sensibly.
        """
        peer = self._peer
        if peer is None or self._is_behind(peer):
            return {}
        try:
            drafts = await self._rounds(peer, tasks)
        except PeerUnavailable as error:
            self._lose(peer, error)
            raise
        except (PeerTimeout, asyncio.CancelledError):
            # Whoever asks has the same deadline, and cancels when it has passed.
            self._note_late(peer)
            raise
        self._num_late = 0
        return {
            one.session_id: Draft(one.tree, one.scores, one.draws)
            for one in drafts
            if len(one.tree) or one.draws
        }

    def forget(self, request_id: int) -> None:
        """The request is over; its session is released in the background."""
        if self._sessions.forget(request_id):
            self._release([request_id])

    async def close(self) -> None:
        """End the connection, and any attempt to bring the draft model back."""
        tasks = [task for task in (self._recovery, self._releasing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        peer, self._peer = self._peer, None
        if peer is not None:
            await peer.close()

    # ------------------------------------------------------------ one round

    async def _rounds(self, peer: _Peer, tasks: Sequence[DraftTask]) -> list[SessionDraft]:
        """Ask; ask again for sessions that turn out to be unknown, within the same deadline."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_s
        drafts = await self._ask(peer, tasks, self._deadline_s)
        unknown = {draft.session_id for draft in drafts if draft.unknown_session}
        if unknown:
            again = [
                task
                for task in tasks
                if task.request_id in unknown and task.request_id in self._sessions
            ]
            drafts += await self._ask(peer, again, deadline - loop.time())
        return drafts

    async def _ask(
        self, peer: _Peer, tasks: Sequence[DraftTask], timeout_s: float
    ) -> list[SessionDraft]:
        request = self._sessions.request(tasks)
        reply = await peer.draft(request, timeout_s)
        self._confirm(request, reply)
        self.weights_version = reply.weights_version
        if self._note_noise is not None:
            self._note_noise(reply.noise_hits, reply.noise_misses)
        return list(reply.drafts)

    def _confirm(self, request: DraftRequest, reply: DraftReply) -> None:
        self._release(self._sessions.confirm(request, reply))

    def _release(self, session_ids: Sequence[int]) -> None:
        self._released.extend(session_ids)
        if self._released and (self._releasing is None or self._releasing.done()):
            self._releasing = asyncio.create_task(self._send_released())

    async def _send_released(self) -> None:
        while self._released and (peer := self._peer) is not None:
            released, self._released = self._released, []
            try:
                await peer.release(released)
            except PeerError as error:
                logger.info("sessions were not released: %s", error)

    # ------------------------------------------------------------ loss and return

    def _is_behind(self, peer: _Peer) -> bool:
        """True while an answer is overdue; one that is so for long ends the draft model's time."""
        since = peer.given_up_at
        if since is None:
            return False
        overdue_s = asyncio.get_running_loop().time() - since
        if overdue_s > MAX_LATE * self._deadline_s:
            self._lose(peer, PeerTimeout(f"an answer is {overdue_s:.1f} s late"))
        return True

    def _note_late(self, peer: _Peer) -> None:
        self._num_late += 1
        if self._num_late >= MAX_LATE:
            self._lose(peer, PeerTimeout(f"{self._num_late} deadlines missed running"))

    def _lose(self, peer: _Peer, error: PeerError) -> None:
        """Go on without the draft model, and begin to bring it back."""
        if peer is not self._peer:
            return
        logger.warning("%s is lost, requests run on without it: %s", self.name, error)
        self._peer = None
        self._num_late = 0
        self._sessions.reset()
        self._released.clear()
        self._recovery = asyncio.create_task(self._bring_back(peer))

    async def _bring_back(self, lost: _Peer) -> None:
        await lost.close()
        for backoff_s in self._backoff.waits_s():
            await asyncio.sleep(backoff_s)
            try:
                peer = await self._connect()
            except TreeServeError as error:
                logger.warning("%s could not be brought back: %s", self.name, error)
            else:
                logger.warning("%s is back", self.name)
                self._backoff.is_back()
                self._peer = peer
                return

    async def _connect(self) -> _Peer:
        """Have the draft model brought up, and see that it answers."""
        peer = self._open(await self._respawn())
        try:
            await peer.describe()
        except TreeServeError:
            await peer.close()
            raise
        return peer

    def _open(self, address: str) -> _Peer:
        return _Peer(address, self._confirm, self._lose, self._tls)


class _Peer:
    """The connection to one draft model's server.

    Requests are answered in order. One that was given up is not taken back: until it has been
    answered there is no sense in sending another.

    Args:
        address: `host:port`.
        on_late: is told of answers that nobody waits for any more, with their requests.
        on_lost: is told that the server has gone, whether or not anything was asked.
        tls: this side's certificate; None for none.
    """

    def __init__(
        self,
        address: str,
        on_late: Callable[[DraftRequest, DraftReply], None],
        on_lost: Callable[[_Peer, PeerError], None],
        tls: TlsFiles | None,
    ) -> None:
        self._address = address
        self._on_late = on_late
        self._on_lost = on_lost
        self._channel = rpc.open_channel(address, tls)
        self._stub = services.SpeculatorStub(self._channel)
        self._stream: OrderedStream[pb.DraftRequest, pb.DraftReply] | None = None
        self._asked: deque[_Asked] = deque()
        self._is_closed = False

    @property
    def given_up_at(self) -> float | None:
        """When the oldest request that is not answered yet was given up, by the loop's clock."""
        return next((one.given_up_at for one in self._asked if one.given_up_at is not None), None)

    async def describe(self) -> DraftModelDescription:
        request = pb.DescribeRequest()
        answer = await rpc.call(self._stub.Describe, request, self._address, CONNECT_TIMEOUT_S)
        self._open()  # from here on its end is noticed
        return draft_wire.decode_description(answer)

    async def draft(self, request: DraftRequest, timeout_s: float) -> DraftReply:
        if self._is_closed:
            raise PeerUnavailable(f"{self._address}: the connection is closed")
        asked = _Asked(request)
        self._asked.append(asked)
        self._open().send(draft_wire.encode_request(request))
        try:
            async with asyncio.timeout(timeout_s):
                answer = await asyncio.shield(asked.answer)
        except TimeoutError:
            asked.give_up()
            raise PeerTimeout(f"{self._address}: no drafts within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            asked.give_up()
            raise
        if isinstance(answer, PeerError):
            raise answer
        return draft_wire.decode_reply(answer)

    async def release(self, session_ids: Sequence[int]) -> None:
        request = pb.ReleaseRequest(session_ids=session_ids)
        await rpc.call(self._stub.Release, request, self._address, RELEASE_TIMEOUT_S)

    async def close(self) -> None:
        self._is_closed = True
        if self._stream is not None:
            await self._stream.close()
        self._end(PeerUnavailable(f"{self._address}: the connection is closed"))
        await self._channel.close()

    def _resolve(self, reply: pb.DraftReply) -> None:
        if not self._asked:
            raise ProtocolError("drafts that nobody asked for")
        asked = self._asked.popleft()
        asked.answer.set_result(reply)
        if asked.given_up_at is not None:
            self._on_late(asked.request, draft_wire.decode_reply(reply))

    def _open(self) -> OrderedStream[pb.DraftRequest, pb.DraftReply]:
        """The stream, which is opened if there is none."""
        if self._stream is None:
            self._stream = OrderedStream(self._stub.Drafts, self._address, self._resolve, self._end)
        return self._stream

    def _end(self, error: PeerError) -> None:
        """The stream is over; the next request opens another."""
        self._stream = None
        while self._asked:
            self._asked.popleft().answer.set_result(error)
        if isinstance(error, PeerUnavailable) and not self._is_closed:
            self._on_lost(self, error)


class _Asked:
    """A request on its way.

    Attributes:
        answer: comes even if nobody waits for it.
        given_up_at: by the loop's clock; None while it is waited for.
    """

    def __init__(self, request: DraftRequest) -> None:
        self.request = request
        self.answer: asyncio.Future[pb.DraftReply | PeerError] = (
            asyncio.get_running_loop().create_future()
        )
        self.given_up_at: float | None = None

    def give_up(self) -> None:
        self.given_up_at = asyncio.get_running_loop().time()
