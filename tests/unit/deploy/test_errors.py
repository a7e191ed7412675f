"""Errors that are not the fields' fault: routes, bodies, and what the backend raises."""

from __future__ import annotations

import json

import pytest
from http_fakes import MODEL, assert_error, sse_chunks

from actors.errors import (
    InputError,
    ModelError,
    OverloadedError,
    PeerTimeout,
    UnavailableError,
)
from actors.request_manager.generation import FinishReason, GenerationEvent
from deploy.settings import ApiSettings

HELLO = {"prompt": "Hello", "max_tokens": 5}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/index.html", 404),
        ("GET", "/v1/nowhere", 404),
        ("GET", "/docs", 404),
        ("POST", "/v1/completions/", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
    ],
)
async def test_routes_and_methods(serve, method, path, status):
    response = await serve().http.request(method, path)
    assert_error(response, status)
    assert (status == 405) == ("allow" in response.headers)


async def test_an_unknown_model(serve):
    served = serve()
    response = await served.post("/v1/completions", {**HELLO, "model": "another"})
    assert assert_error(response, 404, "model")["code"] == "model_not_found"
    response = await served.http.get("/v1/models/another")
    assert assert_error(response, 404, "model")["code"] == "model_not_found"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"prompt": "a",}',
        b'"Hello"',
        b"[]",
        b"null",
        b'{"prompt": "\xff"}',
        b"\xef\xbb\xbf{}",
        '{"prompt": "a"}'.encode("utf-16"),
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}",
        b'{"prompt": "a", "\\ud800": 1}',
    ],
    ids=lambda body: str(body[:24]),
)
async def test_bodies_that_are_no_json_object(serve, body):
    served = serve()
    response = await served.post_raw("/v1/completions", body)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert served.backend.requests == []


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_that_is_too_long(serve, declared):
    served = serve(settings=ApiSettings(max_body_bytes=1000))
    body = json.dumps({"prompt": "x" * 1000}).encode()

    async def undeclared():
        yield body

    response = await served.http.post(
        "/v1/completions",
        content=body if declared else undeclared(),
        headers={"content-type": "application/json"},
    )
    assert_error(response, 413)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_a_body_that_does_not_say_it_is_json(serve, kind):
    headers = {} if kind is None else {"content-type": kind}
    served = serve()
    response = await served.http.post("/v1/completions", content=json.dumps(HELLO), headers=headers)
    assert_error(response, 415)
    headers = {"content-type": "application/json; charset=utf-8"}
    good = await served.http.post("/v1/completions", content=json.dumps(HELLO), headers=headers)
    assert good.status_code == 200


FAILURES = [
    (InputError("no", "top_k"), 400, "top_k"),
    (OverloadedError("full", 2.5), 429, None),
    (UnavailableError("starting"), 503, None),
    (PeerTimeout("secret address"), 503, None),
    (ModelError("secret path"), 500, None),
    (ZeroDivisionError("secret value"), 500, None),
    (OSError("secret file"), 500, None),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize(("error", "status", "param"), FAILURES)
async def test_a_backend_that_refuses(serve, error, status, param, stream, choices):
    served = serve(errors={0: error})
    body = {**HELLO, "stream": stream, "n": choices}
    response = await served.post("/v1/completions", body)
    shown = assert_error(response, status, param)
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    assert shown["type"] == {4: "invalid_request_error", 5: "server_error"}.get(
        status // 100 if status != 429 else 0, "rate_limit_error"
    )
    if status == 429:
        assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize(("error", "status", "param"), FAILURES)
async def test_a_backend_that_fails_in_the_middle(serve, ids, error, status, param, choices):
    served = serve(ids("abcde"), errors={2: error})
    body = {**HELLO, "n": choices}
    assert_error(await served.post("/v1/completions", body), status, param)
    response = await served.post("/v1/completions", {**body, "stream": True})
    assert response.status_code == 200
    *frames, last, rest = response.content.split(b"\n\n")
    assert rest == b""
    assert b"[DONE]" not in response.content
    assert b"secret" not in response.content
    assert json.loads(frames[0][6:])["choices"][0]["text"] == "a"
    shown = json.loads(last[6:])["error"]
    assert shown["param"] == param
    assert set(shown) == {"message", "type", "param", "code"}
    assert len(served.backend.cancelled) == 2 * choices


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
async def test_a_backend_that_gives_up(serve, monkeypatch, reason):
    served = serve()

    async def generate(_requests):
        yield 0, GenerationEvent((1,), 1)
        yield 0, GenerationEvent((), 1, finish_reason=reason)

    monkeypatch.setattr(served.backend, "generate", generate)
    assert_error(await served.post("/v1/completions", HELLO), 503)


async def test_after_an_error_all_is_as_before(serve, ids):
    served = serve(ids("abcde"), errors={2: PeerTimeout("gone")})
    await served.post("/v1/completions", HELLO)
    served.backend.errors.clear()
    assert (await served.complete(**HELLO))["choices"][0]["text"] == "abcde"
    assert (await served.http.get("/health")).status_code == 200


async def test_status_routes(serve):
    served = serve(note="dequantised from a 4-bit GGUF")
    models = (await served.http.get("/v1/models")).json()
    assert models["object"] == "list"
    (model,) = models["data"]
    assert (model["id"], model["object"]) == (MODEL, "model")
    assert model["max_model_len"] == served.backend.description.max_context_tokens
    assert model["batch_invariant"] is True
    assert model["quantization"] == "int8"
    assert model["note"] == "dequantised from a 4-bit GGUF"
    assert (await served.http.get(f"/v1/models/{MODEL}")).json() == model
    assert "note" not in (await serve().http.get("/v1/models")).json()["data"][0]
    metrics = await served.http.get("/metrics")
    assert metrics.text.startswith("treeserve_requests_running 0\n")
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_frames_of_a_good_stream_are_well_formed(serve, ids):
    response = await serve(ids("ab")).post("/v1/completions", {**HELLO, "stream": True})
    assert len(sse_chunks(response.content)) == 3
    assert response.headers["cache-control"] == "no-cache"
