"""The load-test harness's client and its first look at a server, against servers that are odd.

Each is a few raw bytes over a real socket: no library would send what some of them send.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from loadtest import client
from loadtest.client import Client, Limits, http_session
from loadtest.errors import TargetError
from loadtest.plan import PlannedRequest
from loadtest.probe import probe
from loadtest.records import Outcome, RequestRecord
from loadtest.target import Target

pytestmark = pytest.mark.integration

LIMITS = Limits(60.0, 60.0, 60.0)
REQUEST = PlannedRequest(0, 0, ({"role": "user", "content": "hello"},), {"max_tokens": 4})
STREAM = "Content-Type: text/event-stream\r\n"

Answer = Callable[[str, str], str]
"""From path and request to all that is sent back."""


@asynccontextmanager
async def serving(answer: Answer, *, stay: bool = False) -> AsyncIterator[tuple[str, list[str]]]:
    """Its address, and the requests that came."""
    requests: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = [line.split(":")[1] for line in head.splitlines() if "Content-Length" in line]
        body = (await reader.readexactly(int(length[0]))).decode() if length else ""
        requests.append(head + body)
        writer.write(answer(head.split()[1], head + body).encode())
        await writer.drain()
        if stay:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
    finally:
        server.close()


def reply(status: str = "200 OK", head: str = "", body: str = "") -> str:
    return f"HTTP/1.1 {status}\r\nConnection: close\r\n{head}\r\n{body}"


def events(*found: object) -> str:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in found]
    return "".join(f"data: {text}\n\n" for text in texts)


def said(text: str, reason: str | None = None, used: int | None = None) -> dict:
    usage = {} if used is None else {"usage": {"completion_tokens": used}}
    return {"choices": [{"text": text, "finish_reason": reason}], **usage}


MODELS = reply(body=json.dumps({"data": [{"id": "m"}]}))
WHOLE = events(said("a"), said("b", "stop"), "[DONE]")


async def first_look(answer: Answer, **fields: str) -> Target:
    async with serving(answer) as (address, _), http_session(LIMITS, verify_tls=True) as session:
        return await probe(session, Target("", address, **fields), LIMITS)


async def send(answer: Answer, *, stay: bool = False) -> RequestRecord:
    record = RequestRecord(0, 0, 0.0, 0.0)
    async with (
        serving(answer, stay=stay) as (address, _),
        http_session(LIMITS, verify_tls=True) as session,
    ):
        await Client(session, Target("", address), LIMITS).send(REQUEST, (), record)
    return record


async def test_a_redirection_is_told_and_not_followed():
    moved = reply("307 Temporary Redirect", "Location: https://other/\r\n")
    for answer in (lambda *_: moved, lambda path, _: MODELS if path == "/v1/models" else moved):
        with pytest.raises(TargetError, match="redirected to https://other/"):
            await first_look(answer)
    assert (await send(lambda *_: moved)).outcome is Outcome.NOT_A_STREAM


async def test_a_server_without_a_list_of_models_needs_a_name():
    def answer(path: str, _: str) -> str:
        return reply("404 Not Found") if path == "/v1/models" else reply(head=STREAM, body=WHOLE)

    with pytest.raises(TargetError, match="--model NAME"):
        await first_look(answer)
    assert (await first_look(answer, model="mine")).model == "mine"


async def test_a_server_without_chat_is_met_with_the_right_hint():
    def answer(path: str, _: str) -> str:
        return MODELS if path == "/v1/models" else reply("404 Not Found")

    with pytest.raises(TargetError, match="--endpoint completions"):
        await first_look(answer)


async def test_a_server_that_tells_more_than_it_was_asked_for_is_believed():
    def answer(path: str, request: str) -> str:
        if path == "/v1/models":
            return MODELS
        if "return_token_ids" in request or "stream_options" in request:
            return reply("422 Unprocessable Entity")
        return reply(head=STREAM, body=events(said("a", None, 1), said("b", "stop", 2)))

    assert (await first_look(answer)).counting == {}


@pytest.mark.parametrize("head", ["", "Content-Length: 9999\r\n", "Transfer-Encoding: chunked\r\n"])
@pytest.mark.parametrize("stay", [False, True])
async def test_an_answer_that_said_done_is_whole_however_its_connection_ends(
    monkeypatch, head, stay
):
    monkeypatch.setattr(client, "TAIL_S", 0.05)
    body = f"{len(WHOLE):x}\r\n{WHOLE}\r\n" if "chunked" in head else WHOLE
    record = await send(lambda *_: reply(head=STREAM + head, body=body), stay=stay)
    assert (record.outcome, record.text) == (Outcome.OK, "ab")


@pytest.mark.parametrize("status", ["201 Created", "204 No Content"])
async def test_another_good_status_is_no_refusal(status):
    record = await send(lambda *_: reply(status, STREAM))
    assert record.outcome is Outcome.NOT_A_STREAM


async def test_a_balancers_cookie_does_not_tie_requests_to_one_machine():
    answer = reply(head=STREAM + "Set-Cookie: machine=7\r\n", body=WHOLE)
    async with (
        serving(lambda *_: answer) as (address, requests),
        http_session(LIMITS, verify_tls=True) as session,
    ):
        named = address.replace("127.0.0.1", "localhost")  # addresses have no cookies anyway
        for _ in range(2):
            record = RequestRecord(0, 0, 0.0, 0.0)
            await Client(session, Target("", named), LIMITS).send(REQUEST, (), record)
            assert record.outcome is Outcome.OK
    assert len(requests) == 2 and not any("Cookie" in request for request in requests)
