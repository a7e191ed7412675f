"""Who may come in: keys, shares, draining; HEAD and OPTIONS."""

from __future__ import annotations

import asyncio

import pytest
from http_fakes import assert_error

from actors.errors import ConfigError
from deploy import doorkeeper
from deploy.api_keys import ApiKeys, read_keys
from deploy.doorkeeper import Door, Doorkeeper

HELLO = {"prompt": "Hello", "max_tokens": 3}
KEYS = ("first-key-of-a-test", "second-key-of-a-test")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def status(served, headers, **changes):
    answer = await served.http.post("/v1/completions", json={**HELLO, **changes}, headers=headers)
    return answer.status_code


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer(KEYS[0] + "x"),
        bearer(KEYS[0][:-1]),
        bearer(""),
        {"authorization": KEYS[0]},
        {"authorization": f"Basic {KEYS[0]}"},
        {"authorization": "Bearer é".encode("latin-1")},
    ],
)
async def test_without_a_key_nobody_comes_in(serve, caplog, headers):
    served = serve(door=Door(ApiKeys(KEYS)))
    for path in ("/v1/completions", "/v1/nowhere"):
        answer = await served.http.post(path, json=HELLO, headers=headers)
        assert assert_error(answer, 401)["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["connection"] == "close"
    assert (await served.http.get("/v1/models", headers=headers)).status_code == 401
    assert served.backend.requests == []
    for path in ("/health", "/metrics"):
        assert (await served.http.get(path, headers=headers)).status_code == 200
    assert not any(key in caplog.text for key in KEYS)


async def test_a_stranger_whose_body_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(doorkeeper, "STRANGER_BODY_S", 0.0)
    app = Doorkeeper(None, Door(ApiKeys(KEYS)))
    sent = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    await app(scope, receive, send)
    assert sent[0]["status"] == 401
    assert [message.get("more_body", False) for message in sent[1:]] == [True, False]


@pytest.mark.parametrize("key", KEYS)
async def test_every_key_opens(serve, ids, key):
    served = serve(ids("abc"), door=Door(ApiKeys(KEYS)))
    assert await status(served, bearer(key)) == 200
    assert await status(served, {"authorization": f"bearer  {key} "}) == 200


async def test_a_key_has_its_share_and_takes_no_other(serve, ids):
    served = serve(ids("abc"), hold_after=0, door=Door(ApiKeys(KEYS), max_places_per_key=3))
    running = asyncio.create_task(status(served, bearer(KEYS[0]), n=2))
    await served.backend.held.wait()
    answer = await served.http.post(
        "/v1/completions", json={**HELLO, "n": 2}, headers=bearer(KEYS[0])
    )
    assert_error(answer, 429)
    assert int(answer.headers["retry-after"]) >= 1
    served.backend.released.set()
    assert await status(served, bearer(KEYS[1]), n=3) == 200
    assert await running == 200
    assert await status(served, bearer(KEYS[0]), n=3) == 200


async def test_more_than_a_keys_share_is_refused_for_good(serve):
    """Trying again would never help."""
    served = serve(door=Door(ApiKeys(KEYS), max_places_per_key=3))
    answer = await served.http.post(
        "/v1/completions", json={**HELLO, "n": 4}, headers=bearer(KEYS[0])
    )
    assert_error(answer, 400, "n")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_request_gives_its_places_back(serve, ids, stream):
    served = serve(ids("abc"), door=Door(ApiKeys(), max_places_per_key=1))
    assert await status(served, {}, temperature=-1, stream=stream) == 400
    assert await status(served, {}, stream=stream) == 200
    assert await status(served, {}, stream=stream) == 200


async def test_draining_lets_those_inside_end_and_nobody_else_in(serve, ids):
    door = Door(ApiKeys())
    served = serve(ids("abc"), hold_after=1, door=door)
    running = asyncio.create_task(served.http.post("/v1/completions", json=HELLO))
    await served.backend.held.wait()
    draining = asyncio.create_task(door.drain(20.0))
    await asyncio.sleep(0)
    answer = await served.http.post("/v1/completions", json=HELLO)
    assert_error(answer, 503)
    assert answer.headers["retry-after"]
    assert_error(await served.http.get("/ready"), 503)
    assert (await served.http.get("/health")).status_code == 200
    assert not draining.done()
    served.backend.released.set()
    whole = await running
    assert whole.json()["usage"]["completion_tokens"] == 3
    assert whole.headers["connection"] == "close"
    assert await draining


async def test_whoever_comes_while_the_server_is_replaced_is_answered(serve, ids):
    door = Door(ApiKeys())
    served = serve(ids("abc"), door=door)
    door.is_parting = True
    answer = await served.http.post("/v1/completions", json=HELLO)
    assert answer.status_code == 200
    assert answer.headers["connection"] == "close"
    assert await door.empty(0.0)


async def test_only_so_many_are_let_in_at_one_time(serve, ids):
    served = serve(ids("abc"), hold_after=0, door=Door(ApiKeys(), max_inside=1))
    running = asyncio.create_task(status(served, {}))
    await served.backend.held.wait()
    assert await status(served, {}) == 429
    served.backend.released.set()
    assert await running == 200
    assert await status(served, {}) == 200


async def test_draining_is_bounded(serve):
    door = Door(ApiKeys())
    served = serve(hold_after=0, door=door)
    running = asyncio.create_task(served.http.post("/v1/completions", json=HELLO))
    await served.backend.held.wait()
    assert not await door.drain(0.0)
    running.cancel()


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/openapi.json"])
async def test_head_is_get_without_the_body(serve, path):
    http = serve().http
    head, get = await http.head(path), await http.get(path)
    assert (head.status_code, head.headers) == (get.status_code, get.headers)
    assert head.content == b""


async def test_head_of_what_is_posted(serve):
    head = await serve().http.head("/v1/completions")
    assert (head.status_code, head.headers["allow"], head.content) == (405, "POST", b"")


@pytest.mark.parametrize(("path", "allowed"), [("/health", "GET"), ("/v1/completions", "POST")])
async def test_options_tell_what_is_allowed(serve, path, allowed):
    answer = await serve().http.options(path)
    assert (answer.status_code, answer.headers["allow"], answer.content) == (204, allowed, b"")


async def test_keys_are_read_from_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# ours\n{KEYS[0]}\n\n  {KEYS[1]}  \n{KEYS[0]}\n")
    assert read_keys(path) == list(KEYS)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot be read"),
        ("", "holds no key"),
        ("# nothing\n", "holds no key"),
        ("short\n", "line 1"),
        (f"{KEYS[0]}\nname: {KEYS[1]}\n", "line 2"),
        ("ké" * 20, "ASCII"),
    ],
)
def test_a_file_that_is_no_good_is_refused_and_not_shown(tmp_path, text, problem):
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_keys(path)
    assert "api.api_keys_file" in str(caught.value)
    assert not any(key in str(caught.value) for key in (*KEYS, "short"))
