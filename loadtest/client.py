"""Sends one request and writes down what comes back, as it comes.

Over aiohttp: for one stream of 3,000 chunks it used half of httpx's processor time or less. The
clock is read as soon as a read returns, before anything is parsed. Connections are kept for less
time than common servers keep theirs (uvicorn: 5 s), so that a server's closing of an idle one is
not taken for a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from loadtest.answers import AnswerReader, StreamFailure, error_message
from loadtest.failures import FOREIGN, describe, outcome_of, outcome_of_status
from loadtest.plan import Message, PlannedRequest
from loadtest.records import Outcome, RequestRecord
from loadtest.sse import EventSplitter, EventTooLongError
from loadtest.target import INDEX_HEADER, Target

KEEP_ALIVE_S = 3.0
TAIL_S = 1.0
"""How long a stream that has said `[DONE]` may take to close; only its connection is lost then."""
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True)
class Limits:
    """When to give a request up: whole answer, silence, connecting; in seconds."""

    request_s: float = 300.0
    silence_s: float = 60.0
    connect_s: float = 10.0


@contextlib.asynccontextmanager
async def http_session(limits: Limits, *, verify_tls: bool) -> AsyncIterator[aiohttp.ClientSession]:
    """A session without a limit of connections: no request waits for another's."""
    connector = aiohttp.TCPConnector(
        limit=0, ssl=verify_tls, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=None
    )
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=limits.connect_s, sock_read=limits.silence_s
    )
    # Without cookies: a balancer's would tie every request to the first one's machine.
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        yield session


class Client:
    """One arm's client. Implements `driver.Send`."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, limits: Limits) -> None:
        self._session = session
        self._target = target
        self._limits = limits

    async def send(
        self, planned: PlannedRequest, history: Sequence[Message], record: RequestRecord
    ) -> None:
        """Send it; `record` then holds times, chunks and how it ended. Raises no failure."""
        body = json.dumps(self._target.body(planned, history)).encode()
        headers = self._target.headers | {INDEX_HEADER: str(planned.index)}
        clock = asyncio.get_running_loop().time
        record.sent_s = clock()
        try:
            async with asyncio.timeout(self._limits.request_s):
                await self._exchange(body, headers, planned.cancel_after_tokens, record)
        except StreamFailure as failure:
            record.outcome, record.detail = failure.outcome, failure.detail
        except FOREIGN as error:
            if record.outcome is not Outcome.OK:  # else the answer was whole already
                record.outcome, record.detail = outcome_of(error), describe(error)
        finally:
            if record.end_s is None:
                record.end_s = clock()

    async def _exchange(
        self, body: bytes, headers: dict[str, str], hang_up: int | None, record: RequestRecord
    ) -> None:
        clock = asyncio.get_running_loop().time
        async with self._session.post(
            self._target.url, data=body, headers=headers, allow_redirects=False
        ) as response:
            record.headers_s = clock()
            record.status = response.status
            await _require_stream(response)
            reader, splitter = AnswerReader(record), EventSplitter()
            async for received in response.content.iter_any():
                at_s = clock()
                try:
                    for data in splitter.feed(received):
                        reader.take(data, at_s)
                except EventTooLongError as error:
                    raise StreamFailure(Outcome.BAD_STREAM, str(error)) from error
                if reader.done:
                    record.end_s = at_s
                    break
                if hang_up is not None and reader.num_seen >= hang_up:
                    record.outcome = Outcome.CANCELLED
                    response.close()
                    return
            reader.close()
            record.outcome = Outcome.OK
            await _read_tail(response)


async def _read_tail(response: aiohttp.ClientResponse) -> None:
    """The end of the body after `[DONE]`, so that the connection can be used again."""
    with contextlib.suppress(*FOREIGN):
        async with asyncio.timeout(TAIL_S):
            async for _ in response.content.iter_any():
                pass


async def _require_stream(response: aiohttp.ClientResponse) -> None:
    if 300 <= response.status < 400:
        where = response.headers.get("Location", "nowhere")
        raise StreamFailure(Outcome.NOT_A_STREAM, f"redirected to {where}; give that address")
    if response.status != 200:
        detail = error_message(json_or_text(await response.read()))
        raise StreamFailure(outcome_of_status(response.status), detail)
    if response.content_type != EVENT_STREAM:
        raise StreamFailure(Outcome.NOT_A_STREAM, f"content type {response.content_type}")


def json_or_text(body: bytes) -> Any:  # noqa: ANN401 - whatever the server sent
    """A body as JSON, or else as text."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")
