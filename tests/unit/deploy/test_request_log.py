"""A line for each request; not a word of what was asked or answered."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from http_fakes import Served

from actors.errors import UnavailableError
from cluster.logs import FIELDS

Serve = Callable[..., Served]
Ids = Callable[[str], list[int]]


def events(caplog: pytest.LogCaptureFixture) -> list[dict]:
    return [
        {"event": record.getMessage(), **getattr(record, FIELDS)}
        for record in caplog.records
        if hasattr(record, FIELDS)
    ]


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "deploy")


async def test_a_request_is_named_by_its_answer(
    serve: Serve, ids: Ids, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await serve(ids("Hello")).complete(prompt="world", max_tokens=2)
    (event,) = events(caplog)
    assert event == {
        "event": "request answered",
        "request_id": answer["id"],
        "route": "/v1/completions",
        "status": 200,
        "broken": False,
        "seconds": 0.0,
    }
    assert "world" not in caplog.text
    assert "Hello" not in caplog.text


async def test_what_is_refused_and_what_breaks(
    serve: Serve, ids: Ids, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(ids("abcde"), errors={2: UnavailableError("the LLM is lost")})
    await served.http.post("/v1/completions", json={"prompt": 7.5})
    await served.http.post("/v1/completions", json={"prompt": "Hello", "stream": True})
    await served.http.get("/health")
    refused, broken = events(caplog)
    assert (refused["status"], refused["request_id"]) == (400, None)
    assert (broken["status"], broken["broken"]) == (200, True)


async def test_an_id_does_not_stay_for_the_next_request(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()
    first = await served.complete(prompt="Hello")
    await served.http.post("/v1/completions", json={"prompt": 7.5})
    assert [event["request_id"] for event in events(caplog)] == [first["id"], None]
