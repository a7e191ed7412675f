"""A stream of requests and replies that stays open, as the request manager keeps one to each peer.

A message on an open stream takes a third of the time of a call of its own: there is no call to set
up on either side. One task for each direction; nothing here bounds how long a reply may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc

from actors import rpc
from actors.errors import PeerError, PeerUnavailable, ProtocolError

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class OrderedStream(Generic[Request, Reply]):
    """One open stream; requests go out in the order of `send`. Make it inside the running loop.

    Args:
        open_call: a stub's method with streams both ways.
        peer: its address.
        on_reply: called with every reply; may raise ProtocolError, which ends the stream.
        on_end: called once, with the reason, unless the stream is ended by `close`.
    """

    def __init__(
        self,
        open_call: Callable[[], grpc.aio.StreamStreamCall[Request, Reply]],
        peer: str,
        on_reply: Callable[[Reply], None],
        on_end: Callable[[PeerError], None],
    ) -> None:
        self._peer = peer
        self._on_reply = on_reply
        self._on_end = on_end
        self._call = open_call()
        self._outbox: asyncio.Queue[Request] = asyncio.Queue()
        self._writer = asyncio.create_task(self._write())
        self._reader = asyncio.create_task(self._read())

    def send(self, message: Request) -> None:
        self._outbox.put_nowait(message)

    async def close(self) -> None:
        self._writer.cancel()
        self._reader.cancel()
        await asyncio.gather(self._writer, self._reader, return_exceptions=True)
        self._call.cancel()

    async def _write(self) -> None:
        try:
            while True:
                await self._call.write(await self._outbox.get())
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # the stream is over, and the reader tells why

    async def _read(self) -> None:
        try:
            async for reply in self._call:
                self._on_reply(reply)
            error: PeerError = PeerUnavailable(f"{self._peer}: the peer ended the stream")
        except grpc.aio.AioRpcError as failure:
            error = rpc.peer_error(failure, self._peer)
        except ProtocolError as problem:
            error = ProtocolError(f"{self._peer}: {problem}")
        self._on_end(error)
