"""Many short requests: no process grows with their number."""

from __future__ import annotations

import asyncio
import json
import os

from conftest import Server

NUM_REQUESTS = int(os.environ.get("SOAK_REQUESTS", "20000"))
NUM_CLIENTS = 16
NUM_SAMPLES = 10
MAX_GROWTH_MB = 5.0
"""Of a process in the second half of the run: half a kilobyte a request."""


async def test_memory_does_not_grow_with_requests(server: Server) -> None:
    samples = []
    while len(samples) < NUM_SAMPLES:
        await ask(server, NUM_REQUESTS // NUM_SAMPLES)
        samples.append(server.memory_mb())
        print({title: round(size) for title, size in samples[-1].items()}, flush=True)
    before, after = samples[len(samples) // 2 - 1], samples[-1]
    growth = {title: round(after[title] - before[title], 1) for title in before}
    assert max(growth.values()) < MAX_GROWTH_MB, growth
    assert not any(server.gauges().values())


async def ask(server: Server, num_requests: int) -> None:
    """So many requests, some of them streams, over connections that stay open."""
    left = iter(range(num_requests))
    await asyncio.gather(*(client(server, left) for _ in range(NUM_CLIENTS)))


async def client(server: Server, left: object) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    for number in left:  # type: ignore[attr-defined]
        stream = number % 2 == 0
        body = json.dumps({"prompt": f"Hello {number}", "max_tokens": 2, "stream": stream})
        writer.write(
            (
                "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}"
            ).encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 OK" in head, head
        if stream:
            await reader.readuntil(b"0\r\n\r\n")
        else:
            (length,) = (
                int(line.split(b":")[1])
                for line in head.splitlines()
                if line.lower().startswith(b"content-length:")
            )
            await reader.readexactly(length)
    writer.close()
