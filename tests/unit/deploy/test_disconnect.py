"""A client that goes away stops its generation, whenever it goes."""

from __future__ import annotations

import asyncio
import json

import pytest


class Client:
    """Speaks ASGI by hand, so that it can go away at any time."""

    def __init__(self, app, body):
        self.sent = []
        self.gone = asyncio.Event()
        self._inbox = [{"type": "http.request", "body": json.dumps(body).encode()}]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self.served = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self):
        if self._inbox:
            return self._inbox.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.sent.append(message)


LONG = {"prompt": "Hello", "max_tokens": 150, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("events", [0, 1, 5])
async def test_going_away_cancels_at_once(serve, ids, stream, choices, events):
    served = serve(ids("a" * 150), hold_after=events)
    client = Client(served.app, {**LONG, "stream": stream, "n": choices})
    await served.backend.held.wait()
    client.gone.set()
    await client.served
    assert len(served.backend.cancelled) == len(served.backend.requests) == choices


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_drops_the_request_cancels_it_too(serve, ids, stream):
    served = serve(ids("a" * 150), hold_after=2)
    client = Client(served.app, {**LONG, "stream": stream})
    await served.backend.held.wait()
    client.served.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.served
    assert len(served.backend.cancelled) == 1


async def test_a_stream_that_ends_is_not_cancelled(serve, ids):
    served = serve(ids("abc"))
    client = Client(served.app, {"prompt": "Hello", "stream": True})
    await client.served
    assert served.backend.cancelled == []
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
