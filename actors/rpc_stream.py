"""A stream of requests and replies that stays open, as the request manager keeps one to each peer.

A message on an open stream takes a third of the time of a call of its own: there is no call to set
up on either side. One task for each direction; nothing here bounds how long a reply may take.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc

from actors import rpc
from actors.errors import PeerError, PeerUnavailable, ProtocolError

logger = logging.getLogger(__name__)

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
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._stop()

    async def _write(self) -> None:
        try:
            while True:
                await self._call.write(await self._outbox.get())
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # the stream is over, and the reader tells why

    async def _read(self) -> None:
        error = await self._ending()
        await self._stop()
        self._on_end(error)

    async def _ending(self) -> PeerError:
        """Hand on replies until there are no more; why not."""
        try:
            async for reply in self._call:
                self._on_reply(reply)
        except grpc.aio.AioRpcError as failure:
            return rpc.peer_error(failure, self._peer)
        except ProtocolError as problem:
            return ProtocolError(f"{self._peer}: {problem}")
        except Exception as error:  # whatever it is, who waits for replies must hear of it
            logger.exception("a stream failed")
            return PeerError(f"{self._peer}: {type(error).__name__}: {error}")
        return PeerUnavailable(f"{self._peer}: the peer ended the stream")

    async def _stop(self) -> None:
        """Nothing goes out any more, and the peer is told so."""
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        self._call.cancel()
