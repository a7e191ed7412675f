"""uvicorn's HTTP/1.1 protocol, with bounds for what a client may do to a connection.

Bounds: the time that the head of a request takes, and its body; the size of the head; idle
connections; how long a client may take nothing of its answer; the number of connections. What
breaks one of them, or HTTP itself, is answered in the API's error form where an answer can still be
read, and the connection ends.

A client may also shut only its sending side down and still read its answer. That looks like a
client that has gone: so a harmless piece is sent (an interim response, in HTTP/1.0 the first bytes
of the answer's own first line, or a comment in a stream of events), which a client that has gone
answers with a reset.

Assumes Linux, and the internals of uvicorn's `HttpToolsProtocol` as the pinned version has them.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from deploy.http_errors import ApiError
from deploy.responses import to_json

PROBE_CHECK_S = 0.05
TCP_CLOSE = 7
"""A state of `TCP_INFO`: the connection was reset."""

INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
ANY_ANSWER = b"HTTP/1.1 "
"""What every answer begins with, whatever it will be."""
COMMENT = b"3\r\n:\n\n\r\n"
"""A chunk that is a comment in a stream of server-sent events."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds of one connection.

    Attributes:
        max_connections: of the whole server.
        max_head_bytes: of request line and headers.
        receive_timeout_s: for the head of a request, and again for its body.
        write_timeout_s: for a client that takes nothing.
    """

    max_connections: int = 2048
    max_head_bytes: int = 32768
    receive_timeout_s: float = 30.0
    write_timeout_s: float = 60.0


class GuardedProtocol(HttpToolsProtocol):  # type: ignore[misc]  # uvicorn has no stubs
    """One connection. A subclass made by `guarded` carries the limits."""

    limits = ConnectionLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._receiving: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._probing: asyncio.TimerHandle | None = None
        self._served: RequestResponseCycle | None = None
        self._in_head = True
        self._num_bare_bytes = 0  # of a head, or come since the last of a body

    # ------------------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections are open")
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._receiving, self._writing, self._probing):
            if timer is not None:
                timer.cancel()
        # With pipelined requests, uvicorn tells only the last one.
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def eof_received(self) -> bool:
        """True keeps the connection for the answer that is still to be sent."""
        served = self._served
        wanted = served is not None and not served.response_complete and not served.more_body
        if not wanted:
            return False
        self.cycle.keep_alive = False
        self._probe()
        return True

    def _probe(self) -> None:
        served = self._served
        if served is None or not served.response_started:
            self._probe_before_answer()
        elif served.chunked_encoding:
            self.transport.write(COMMENT)
        self._probing = self.loop.call_later(PROBE_CHECK_S, self._check_peer)

    def _probe_before_answer(self) -> None:
        if self.scope["http_version"] == "1.1":
            self.transport.write(INTERIM)
        else:
            self.transport.write(ANY_ANSWER)
            self.cycle.transport = _Begun(self.transport, ANY_ANSWER)

    def _check_peer(self) -> None:
        """End a connection that its client has reset; nothing is read any more that would tell."""
        connection = self.transport.get_extra_info("socket")
        if connection is None or self.transport.is_closing():
            return
        if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE:
            self.transport.abort()
        else:
            self._probing = self.loop.call_later(PROBE_CHECK_S, self._check_peer)

    # ------------------------------------------------------------ receiving

    def data_received(self, data: bytes) -> None:
        if self._receiving is None and self._in_head:
            self._expect_head()
        self._num_bare_bytes += len(data)
        super().data_received(data)
        if self._num_bare_bytes > self.limits.max_head_bytes:
            where = "headers are" if self._in_head else "body's trailers or chunk extensions are"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the {where} too long")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        head = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if head > self.limits.max_head_bytes:
            self._num_bare_bytes = head  # told of when all that has come is parsed
            return
        self._in_head = False
        self._num_bare_bytes = 0
        self._expect("the body of the request was not complete in time")
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer, which nobody wants
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        if not self._in_head:
            self._num_bare_bytes = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._in_head:
            return
        self._stop_receiving()
        self._in_head = True
        self._num_bare_bytes = 0
        super().on_message_complete()

    def _expect_head(self) -> None:
        self._expect("the head of the request was not complete in time")

    def _expect(self, problem: str) -> None:
        """From now on the client has the receive timeout for what comes next."""
        self._stop_receiving()
        self._receiving = self.loop.call_later(
            self.limits.receive_timeout_s, self._refuse, HTTPStatus.REQUEST_TIMEOUT, problem
        )

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    # ------------------------------------------------------------ sending

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self.limits.write_timeout_s, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _give_up(self) -> None:
        """The client takes nothing: a graceful end would wait for it for ever."""
        self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """What the parser cannot read."""
        self._refuse(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP/1.1")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer with an error, unless that would end up within another answer, and hang up."""
        self._stop_receiving()
        if self.transport.is_closing():
            return
        if self._served is None or self._is_between() or self._is_unanswered():
            self.transport.write(_error_response(status, message))
        self.transport.close()

    def _is_between(self) -> bool:
        """The last request has come and been answered."""
        served = self._served
        return served is not None and served.response_complete and not served.more_body

    def _is_unanswered(self) -> bool:
        """The request whose body is being received has no answer yet."""
        served = self._served
        return served is not None and served.more_body and not served.response_started


class _Begun:
    """A transport on which the first bytes of an answer have been sent already."""

    def __init__(self, transport: asyncio.Transport, sent: bytes) -> None:
        self._transport = transport
        self._sent = sent

    def write(self, data: bytes) -> None:
        sent, self._sent = self._sent, b""
        self._transport.write(data.removeprefix(sent))

    def close(self) -> None:
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


def guarded(limits: ConnectionLimits) -> type[GuardedProtocol]:
    """The protocol with these limits; uvicorn makes one for each connection."""
    return type("GuardedProtocol", (GuardedProtocol,), {"limits": limits})


def _error_response(status: HTTPStatus, message: str) -> bytes:
    code = status.name.lower()
    body = to_json(ApiError(status, message, "invalid_request_error", code=code).body())
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
