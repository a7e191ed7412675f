"""One HTTP server takes over another one's address while clients come and go."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import PlainTextResponse

from actors.errors import UnavailableError
from cluster.bench.server import free_port
from deploy.http_protocol import ConnectionLimits
from deploy.http_server import HttpServer, bound_socket

PATIENCE_S = 20.0
NUM_REQUESTS = 200
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"


def named(name: str, port: int) -> HttpServer:
    """A server that answers with its name."""
    return HttpServer(PlainTextResponse(name), "127.0.0.1", port, ConnectionLimits())


async def ask(port: int) -> str:
    """Who answers on a connection of its own; empty if the connection ends without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET + b"Connection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.rpartition(b"\r\n\r\n")[2].decode()


async def until_answered_by(name: str, port: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if await ask(port) == name:
                    return
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)


async def test_no_request_is_lost_between_two_servers() -> None:
    port = free_port()
    first, second = named("first", port), named("second", port)
    first.start()
    await until_answered_by("first", port)
    with pytest.raises(UnavailableError):
        bound_socket("127.0.0.1", port)  # nobody comes to share it by mistake
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    before: list[str] = []
    after: list[str] = []
    answers = before

    async def come(number: int) -> None:
        await asyncio.sleep(number * 0.002)
        into = answers
        into.append(await ask(port))

    coming = [asyncio.create_task(come(number)) for number in range(NUM_REQUESTS)]
    second.start()
    await until_answered_by("second", port)
    first.stop_listening()
    answers = after
    writer.write(GET + b"\r\n")
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.readuntil(b"first")
        assert answer.startswith(b"HTTP/1.1 200"), "on a connection that was open"
        await asyncio.gather(*coming)
    writer.close()
    assert len(before) + len(after) == NUM_REQUESTS
    assert set(before) <= {"first", "second"}
    assert set(after) == {"second"}
    for server in (first, second):
        await server.stop()
