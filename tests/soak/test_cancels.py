"""500 clients at once that leave at any moment in any way: nothing of them stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import time
from collections import Counter

from conftest import Server

NUM_CLIENTS = 500
NUM_ROUNDS = int(os.environ.get("SOAK_ROUNDS", "10"))
BACK_S = 2.0
"""After so long every gauge is back at zero."""

PHASES = ("stay", "half a head", "half a body", "at once", "soon", "chunks", "deaf")


async def test_mass_cancels_leave_nothing_behind(server: Server) -> None:
    expected = server.answer()
    counts: Counter[str] = Counter()
    for number in range(NUM_ROUNDS):
        generator = random.Random(number)
        seeds = [generator.random() for _ in range(NUM_CLIENTS)]
        async with asyncio.timeout(300):
            outcomes = await asyncio.gather(*(client(server, seed) for seed in seeds))
        counts.update(outcomes)
        left_s = time.monotonic()
        gauges = server.gauges()
        while any(gauges.values()) and time.monotonic() < left_s + BACK_S:
            await asyncio.sleep(0.05)
            gauges = server.gauges()
        assert not any(gauges.values()), (number, gauges)
        assert server.answer() == expected
    assert counts["stay"] > 0
    assert counts["odd"] == 0, counts
    assert server.metric('treeserve_requests_total{finish_reason="abort"') > 0
    assert server.metric('treeserve_requests_total{finish_reason="error"') == 0


async def client(server: Server, seed: float) -> str:
    """One client; returns how it left, or `odd` if it was not treated as it should be."""
    generator = random.Random(seed)
    phase = generator.choice(PHASES)
    await asyncio.sleep(generator.random() * 0.5)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    stream = phase in ("chunks", "deaf") or generator.random() < 0.5
    request = request_bytes(generator, stream)
    try:
        if phase == "half a head":
            writer.write(request[: generator.randrange(1, 60)])
        elif phase == "half a body":
            writer.write(request[: -generator.randrange(1, 40)])
        else:
            writer.write(request)
        await writer.drain()
        if phase == "soon":
            await asyncio.sleep(generator.random())
        elif phase == "chunks":
            for _ in range(generator.randrange(1, 6)):
                await reader.readline()
        elif phase == "deaf":
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(generator.random())
        elif phase == "stay":
            return phase if is_whole(await reader.read(), stream) else "odd"
        return phase
    finally:
        if phase != "stay" and generator.random() < 0.5:
            reset(writer)
        writer.close()


def request_bytes(generator: random.Random, stream: bool) -> bytes:
    body = json.dumps(
        {
            "prompt": "The " * generator.randrange(1, 40),
            "max_tokens": generator.randrange(1, 64),
            "n": generator.randrange(1, 3),
            "ignore_eos": True,
            "stream": stream,
            "priority": generator.randrange(-1, 2),
            "speculation": {"enabled": generator.random() < 0.5},
        }
    )
    return (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def is_whole(answer: bytes, stream: bool) -> bool:
    if b" 200 OK\r\n" not in answer[:30]:
        return b" 429 " in answer[:30]  # the queue is full, and says so
    return b"[DONE]" in answer if stream else b'"usage"' in answer


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection the hard way."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
