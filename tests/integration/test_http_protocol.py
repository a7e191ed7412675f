"""What a client may do to a connection, over real sockets: slow, half closed, rude, gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from cluster.bench.server import free_port
from deploy.api_keys import ApiKeys
from deploy.doorkeeper import Door, Doorkeeper
from deploy.http_errors import error_frame
from deploy.http_protocol import ConnectionLimits
from deploy.http_server import HttpServer
from deploy.streaming import EventStream, until_disconnect

PATIENCE_S = 20.0
SHORT_S = 0.2
GET = b"GET /answer HTTP/1.1\r\nHost: x\r\n\r\n"


class House:
    """An application whose answers wait until they are let go."""

    def __init__(self) -> None:
        self.running = 0
        self.ended = 0
        self.let_go = asyncio.Event()
        self.chunk = b"data: x\n\n"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        if scope["path"] == "/stream":
            response: Response = EventStream(self._frames(), error_frame)
        elif scope["path"] == "/slow":
            try:
                response = Response(await until_disconnect(receive, self._slow()))
            except ClientDisconnect:
                return
        else:
            response = Response(b"answer to " + body)
        await response(scope, receive, send)

    async def _slow(self) -> bytes:
        async with self._counted():
            await self.let_go.wait()
            return b"at last"

    async def _frames(self) -> AsyncIterator[bytes]:
        async with self._counted():
            while not self.let_go.is_set():
                yield self.chunk
                await asyncio.sleep(0)
            yield b"data: [DONE]\n\n"

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.ended += 1

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.01)


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
async def house() -> House:
    return House()


@asynccontextmanager
async def served(house: ASGIApp, **limits: Any) -> AsyncIterator[Connect]:
    port = free_port()
    server = HttpServer(house, "127.0.0.1", port, ConnectionLimits(**limits))
    server.start()
    writers = []

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)
                    continue
                writers.append(writer)
                return reader, writer

    try:
        yield connect
    finally:
        if isinstance(house, House):
            house.let_go.set()
        for writer in writers:
            writer.close()
        await server.stop()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.read()


def assert_refused(answer: bytes, status: int) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert b"content-type: application/json" in head
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /answer HTTP/1.1\r\nHost: x\r\n",
        b"POST /answer HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf",
        b"POST /answer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf",
    ],
    ids=["nothing", "half a head", "half a body", "half a chunk"],
)
async def test_a_client_that_is_too_slow_is_told_so(house: House, sent: bytes) -> None:
    async with served(house, receive_timeout_s=SHORT_S) as connect:
        reader, writer = await connect()
        writer.write(sent)
        assert_refused(await read_all(reader), 408)


async def test_the_time_does_not_begin_again_with_each_byte(house: House) -> None:
    async with served(house, receive_timeout_s=SHORT_S) as connect:
        reader, writer = await connect()

        async def drip() -> None:
            for byte in GET[:-2] + b"X: " + b"x" * 100_000:
                writer.write(bytes([byte]))
                await asyncio.sleep(SHORT_S / 10)

        dripping = asyncio.create_task(drip())
        assert_refused(await read_all(reader), 408)
        dripping.cancel()


async def test_a_second_request_has_its_own_time(house: House) -> None:
    async with served(house, receive_timeout_s=SHORT_S) as connect:
        reader, writer = await connect()
        writer.write(GET)
        await reader.readuntil(b"answer to ")
        writer.write(b"GET /")
        assert_refused(await read_all(reader), 408)


async def test_an_answer_that_takes_its_time_is_not_cut_off(house: House) -> None:
    async with served(house, receive_timeout_s=SHORT_S) as connect:
        reader, writer = await connect()
        writer.write(GET.replace(b"answer", b"slow"))
        await house.until(lambda: house.running == 1)
        await asyncio.sleep(2 * SHORT_S)
        house.let_go.set()
        await reader.readuntil(b"at last")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /answer HTTP/1.1\r\n" + b"X: " + b"x" * 5000,
        b"GET /answer HTTP/1.1\r\n" + b"X: " + b"x" * 5000 + b"\r\n\r\n",
        b"GET /answer HTTP/1.1\r\n" + b"x: y\r\n" * 2000 + b"\r\n",
        b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["one header", "one whole header", "many headers", "url"],
)
async def test_a_head_that_is_too_long(house: House, sent: bytes) -> None:
    async with served(house, max_head_bytes=4096) as connect:
        reader, writer = await connect()
        writer.write(sent)
        assert_refused(await read_all(reader), 431)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /answer HTTP/9.9\r\n\r\n",
        b"SPEAK /answer HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"POST /answer HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /answer HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /answer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /answer HTTP/1.1\r\nA B: c\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_in_the_apis_form(house: House, sent: bytes) -> None:
    async with served(house) as connect:
        reader, writer = await connect()
        writer.write(sent)
        assert_refused(await read_all(reader), 400)


async def test_rubbish_behind_a_request_does_not_get_into_its_answer(house: House) -> None:
    async with served(house) as connect:
        reader, writer = await connect()
        writer.write(GET.replace(b"answer", b"stream"))
        await reader.readuntil(house.chunk)
        writer.write(b"\x00\x01\x02 rubbish \r\n\r\n")
        assert b"HTTP/1.1" not in await read_all(reader)
        await house.until(lambda: house.ended == 1)


CHUNKED = b"POST /answer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "more"),
    [(b"0\r\n", b"x: y\r\n"), (b"0\r\nx: ", b"y" * 1000), (b"1;", b"x=y;" * 100)],
    ids=["trailers", "one trailer", "a chunk's extensions"],
)
async def test_what_may_stand_behind_a_body_is_bounded(
    house: House, begin: bytes, more: bytes
) -> None:
    async with served(house, max_head_bytes=10_000) as connect:
        reader, writer = await connect()
        writer.write(CHUNKED + begin + more)
        await asyncio.sleep(SHORT_S)
        with contextlib.suppress(ConnectionError):
            writer.write(more * (20_000 // len(more)))
            assert_refused(await read_all(reader), 431)
        _, writer = await connect()
        writer.write(CHUNKED + begin)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(more * 100)
                    await writer.drain()
                    await asyncio.sleep(0)


async def test_trailers_do_no_harm(house: House) -> None:
    async with served(house) as connect:
        reader, writer = await connect()
        writer.write(CHUNKED + b"2\r\nhi\r\n0\r\nx: y\r\n\r\n" + GET)
        assert b"answer to hi" in await reader.readuntil(b"answer to hi")
        assert b"200 OK" in await reader.readuntil(b"answer to ")


async def test_a_body_that_is_answered_early_gets_no_second_answer() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await Response(b"too large", 413)(scope, receive, send)

    async with served(refuse, receive_timeout_s=SHORT_S) as connect:
        reader, writer = await connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\nabc")
        answer = await read_all(reader)
        assert b" 413 " in answer
        assert answer.count(b"HTTP/1.1") == 1


async def test_connections_are_counted(house: House) -> None:
    async with served(house, max_connections=1) as connect:
        _, first = await connect()
        reader, _ = await connect()
        assert_refused(await read_all(reader), 503)
        first.close()
        await first.wait_closed()

        async def answered() -> bool:
            reader, writer = await connect()
            writer.write(GET)
            return b"200 OK" in await reader.readline()

        async with asyncio.timeout(PATIENCE_S):
            while not await answered():
                pass


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize("path", [b"answer", b"slow", b"stream"])
async def test_a_client_that_shuts_only_its_sending_side_gets_its_answer(
    house: House, path: bytes, version: bytes
) -> None:
    async with served(house) as connect:
        reader, writer = await connect()
        writer.write(GET.replace(b"answer", path).replace(b"HTTP/1.1", version))
        if path != b"answer":
            await house.until(lambda: house.running == 1)
        writer.write_eof()
        await asyncio.sleep(SHORT_S)
        house.let_go.set()
        answer = await read_all(reader)
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert version == b"HTTP/1.1" or answer.startswith(b"HTTP/1.1 200 OK")
    assert any(end in answer for end in (b"answer to ", b"at last", b"[DONE]"))


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection the hard way."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


@pytest.mark.parametrize("end", [asyncio.StreamWriter.close, reset], ids=["closed", "reset"])
@pytest.mark.parametrize("path", [b"slow", b"stream"])
@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
async def test_a_client_that_goes_away_ends_the_work(
    house: House, path: bytes, version: bytes, end: Callable[[asyncio.StreamWriter], None]
) -> None:
    async with served(house) as connect:
        _, writer = await connect()
        writer.write(GET.replace(b"answer", path).replace(b"HTTP/1.1", version))
        await house.until(lambda: house.running == 1)
        end(writer)
        await house.until(lambda: house.ended == 1)


async def test_a_client_that_goes_away_with_requests_in_its_pipeline(house: House) -> None:
    async with served(house) as connect:
        _, writer = await connect()
        writer.write(2 * GET.replace(b"answer", b"slow"))
        await house.until(lambda: house.running == 1)
        reset(writer)
        await house.until(lambda: house.ended == 1)
        assert house.running == 0


async def test_a_client_that_reads_nothing_is_given_up(house: House) -> None:
    house.chunk = b"x" * 65536
    async with served(house, write_timeout_s=SHORT_S) as connect:
        reader, writer = await connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET.replace(b"answer", b"stream"))
        await house.until(lambda: house.ended == 1)


@pytest.mark.parametrize(
    "body", [b"", b"x", b"x" * 3_000_000], ids=["no body", "a short body", "a long body"]
)
async def test_a_stranger_gets_an_answer_and_loses_the_connection(
    house: House, body: bytes
) -> None:
    door = Door(ApiKeys(["a-key-of-this-test"]))
    async with served(Doorkeeper(house, door)) as connect:
        reader, writer = await connect()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode())
        for start in range(0, len(body), 100_000):
            writer.write(body[start : start + 100_000])
            await writer.drain()
        answer = await read_all(reader)
        assert_refused(answer, 401)
        assert b"connection: close" in answer


async def test_a_stranger_is_answered_before_the_body_has_come(house: House) -> None:
    door = Door(ApiKeys(["a-key-of-this-test"]))
    async with served(Doorkeeper(house, door), receive_timeout_s=SHORT_S) as connect:
        reader, writer = await connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
        assert_refused(await read_all(reader), 401)
