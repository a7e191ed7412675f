"""The live page in a real Chromium, over a stand-in for the API: keys, errors, rare answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chromium import PROGRAM, Page, open_page
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from cluster.bench.server import free_port
from deploy.http_protocol import ConnectionLimits
from deploy.http_server import HttpServer
from deploy.page import add_page

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium (Debian package chromium)"),
]

KEY = "secret"
IS_OVER = "document.getElementById('send').disabled === false"
STATUS = "document.getElementById('status').textContent"
ANSWER = "document.getElementById('answer').textContent"
READY = "document.getElementById('ready').textContent"
FORGED = "<img src=x onerror='document.title = 1'>"
"""Text of a model that would be markup if the page let it."""


def step(number: int, drafts: list[str], accepted: int, own: str | None, by: str = "ssm") -> Any:
    """A chain of drafts of which the first are accepted."""
    return {
        "step": number,
        "tokens": ["<root>", *drafts],
        "parents": list(range(-1, len(drafts))),
        "drafters": [[], *[[by]] * len(drafts)],
        "estimates": [1.0] * (len(drafts) + 1),
        "accepted": list(range(1, accepted + 1)),
        "committed": drafts[:accepted] + ([own] if own else []),
        "phase_s": {"draft": 0.01, "merge": 0.0, "step": 0.02, "forward": 0.01, "verify": 0.0},
    }


def chunk(text: str, *trees: Any, ended: str | None = None) -> Any:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": ended, "trees": trees}
    return {"choices": [choice]}


@dataclass
class StandIn:
    """Answers every question with these frames, to who has the key.

    Attributes:
        asked: bodies of the questions.
        hangs: the stream stays open after the frames.
        is_ready, has_figures: what /ready says, and whether /metrics has an answer.
    """

    frames: list[Any] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    hangs: bool = False
    key: str | None = None
    is_ready: bool = True
    has_figures: bool = True
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> FastAPI:
        app = FastAPI()
        add_page(app)
        app.add_api_route("/v1/models", self.models, response_model=None)
        app.add_api_route("/ready", self.ready, response_model=None)
        app.add_api_route("/metrics", self.metrics, response_model=None)
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.add_api_route(path, self.generate, methods=["POST"], response_model=None)
        return app

    def _refusal(self, request: Request) -> Response | None:
        if self.key in (None, request.headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        return JSONResponse({"error": {"message": "a key of this server is needed"}}, 401)

    async def ready(self) -> Response:
        return JSONResponse({}, 200 if self.is_ready else 503)

    async def metrics(self) -> Response:
        if not self.has_figures:
            return JSONResponse({"error": {"message": "the request manager is restarting"}}, 503)
        return Response('treeserve_draft_tokens_total{drafter="ssm"} 4\n')

    async def models(self, request: Request) -> Response:
        return self._refusal(request) or JSONResponse({"data": [{"id": "stand-in"}]})

    async def generate(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        self.asked.append(await request.json())
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        for frame in self.frames:
            yield f"data: {frame if isinstance(frame, str) else json.dumps(frame)}\n\n"
        try:
            while self.hangs:
                await asyncio.sleep(0.05)
                yield ": still here\n\n"
        finally:
            self.left.set()


def start(stand_in: StandIn) -> tuple[HttpServer, str]:
    """A server of its own, and the address of its page."""
    server = HttpServer(stand_in.app(), "127.0.0.1", port := free_port(), ConnectionLimits())
    server.start()
    return server, f"http://127.0.0.1:{port}/"


@asynccontextmanager
async def visit(stand_in: StandIn, folder: Path) -> AsyncIterator[Page]:
    server, url = start(stand_in)
    try:
        async with open_page(url, folder) as page:
            yield page
            assert page.complaints == []
    finally:
        await server.stop()


async def test_it_asks_for_a_key_where_one_is_needed(tmp_path: Path) -> None:
    stand_in = StandIn([chunk("yes", step(0, [], 0, "yes"), ended="stop"), "[DONE]"], key=KEY)
    async with visit(stand_in, tmp_path) as page:
        await page.until("!document.getElementById('key-field').hidden")
        await page.press("Enter")
        await page.until(f"{STATUS}.includes('A key of this server is needed')")
        assert await page.evaluate("document.activeElement.id") == "key"
        await page.write(KEY)
        await page.press("Enter")
        await page.until(f"{STATUS}.startsWith('Done')")
        assert await page.evaluate(ANSWER) == "yes"
        await page.until("document.getElementById('model').textContent === 'stand-in'")
        stored = "JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])"
        assert KEY not in await page.evaluate(stored)
    assert not any(KEY in url for url in page.urls)


async def test_a_key_that_no_header_can_hold_is_told(tmp_path: Path) -> None:
    stand_in = StandIn([chunk("yes", step(0, [], 0, "yes"), ended="stop"), "[DONE]"], key=KEY)
    async with visit(stand_in, tmp_path) as page:
        await page.until("!document.getElementById('key-field').hidden")
        await page.evaluate("document.getElementById('key').focus()")
        await page.write("\u043a\u043b\u044e\u0447")
        await page.press("Enter")
        await page.until(f"{STATUS}.includes('keys have ASCII characters alone')")
        assert await page.evaluate("document.activeElement.id") == "key"
        assert await page.evaluate("document.getElementById('model').textContent") != "stand-in"
        await page.evaluate("document.getElementById('key').value = ''")
        await page.write(KEY)
        await page.press("Enter")
        await page.until(f"{STATUS}.startsWith('Done')")


async def test_several_steps_in_one_chunk(tmp_path: Path) -> None:
    steps = [
        step(0, [], 0, "a"),
        step(1, ["b", "c", "d"], 2, "x"),
        step(2, ["e"], 1, None, "ssm-1"),
    ]
    stand_in = StandIn([chunk("abcxe", *steps, ended="length"), "[DONE]"])
    async with visit(stand_in, tmp_path) as page:
        await page.press("Enter")
        await page.until(f"{STATUS}.startsWith('Done, at the limit')")
        assert await page.evaluate(ANSWER) == "abcxe"
        spans = "[...document.querySelectorAll('#answer span')]"
        by_step = await page.evaluate(f"{spans}.map(s => s.dataset.step + s.textContent)")
        assert by_step == ["0a", "1b", "1c", "1x", "2e"]
        await page.evaluate("steps.go(1)")
        fates = "[...document.querySelectorAll('#tree .node')].map(n => n.classList[1])"
        assert await page.evaluate(fates) == ["root", "accepted", "accepted", "thrown", "own"]
        letters = "drafters.of('ssm').letter + drafters.of('ssm-1').letter"
        assert await page.evaluate(letters) == "SS1"


async def test_text_of_a_model_never_becomes_markup(tmp_path: Path) -> None:
    tokens = step(0, [FORGED], 1, "\n\u2028 \U0001f332")
    text = FORGED + "\n\u2028 \U0001f332"
    async with visit(StandIn([chunk(text, tokens, ended="stop"), "[DONE]"]), tmp_path) as page:
        await page.press("Enter")
        await page.until(f"{STATUS}.startsWith('Done')")
        assert await page.evaluate(ANSWER) == text
        assert await page.evaluate("document.querySelectorAll('img').length") == 0
        assert await page.evaluate("document.title") == "TreeServe"


async def test_text_that_its_tokens_do_not_spell_is_shown_all_the_same(tmp_path: Path) -> None:
    halves = step(0, ["an ", "bytes:\\xc3", "bytes:\\xa9", "\u00e9"], 4, " tree")
    frames = [chunk("an \u00e9\u00e9 tree", halves), chunk("!", step(1, ["!"], 1, None)), "[DONE]"]
    async with visit(StandIn(frames), tmp_path) as page:
        await page.press("Enter")
        await page.until(f"{STATUS}.startsWith('Done')")
        assert await page.evaluate(ANSWER) == "an \u00e9\u00e9 tree!"
        spans = "[...document.querySelectorAll('#answer span')]"
        brought = f"{spans}.map(s => [s.textContent, s.title, s.classList.contains('by')])"
        assert await page.evaluate(brought) == [
            ["an ", "by ssm", True],
            ["\u00e9\u00e9 tree", "", False],  # who brought which of the two is not known
            ["!", "by ssm", True],
        ]


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        (
            [chunk("a", step(0, [], 0, "a")), {"error": {"message": "the LLM is lost"}}],
            "The LLM is lost",
        ),
        ([chunk("a", step(0, [], 0, "a"))], "The stream broke off"),
    ],
    ids=["error", "cut"],
)
async def test_a_stream_that_ends_badly_says_so(tmp_path: Path, frames: Any, says: str) -> None:
    async with visit(StandIn(frames), tmp_path) as page:
        await page.press("Enter")
        await page.until(f"{STATUS} === {json.dumps(says)}")
        assert await page.evaluate(f"{ANSWER} === 'a' && {IS_OVER}")


async def test_stopping_closes_the_stream(tmp_path: Path) -> None:
    stand_in = StandIn([chunk("a", step(0, [], 0, "a"))], hangs=True)
    async with visit(stand_in, tmp_path) as page:
        await page.press("Enter")
        await page.until(f"{ANSWER} === 'a'")
        await page.press("Escape")
        await page.until(f"{STATUS}.startsWith('Stopped') && {IS_OVER}")
        async with asyncio.timeout(20):
            await stand_in.left.wait()


async def test_the_form_is_what_is_asked(tmp_path: Path) -> None:
    stand_in = StandIn([chunk("a", step(0, [], 0, "a"), ended="stop"), "[DONE]"])
    async with visit(stand_in, tmp_path) as page:
        await page.until("!document.getElementById('drafters').hidden")
        await page.write("two")
        await page.press("Enter", shift=True)
        await page.write("lines")
        await page.press("Enter")
        await page.until(f"{STATUS}.startsWith('Done')")
        await page.evaluate("document.querySelector('#drafters input').click()")
        await page.evaluate("document.getElementById('mode').value = 'completion'")
        await page.evaluate("document.getElementById('max-tokens').value = 'none'")
        await page.press("Enter")
        assert len(stand_in.asked) == 1, "a form that is wrong is not sent"
        await page.evaluate("document.getElementById('max-tokens').value = 5")
        await page.press("Enter")
        await page.until(f"{STATUS}.startsWith('Done') && {IS_OVER}")
    common = {"stream": True, "return_trees": True, "temperature": 0}
    assert stand_in.asked == [
        {"messages": [{"role": "user", "content": "two\nlines"}], "max_tokens": 128, **common},
        {"prompt": "two\nlines", "max_tokens": 5, "speculation": {"enabled": False}, **common},
    ]


async def test_readiness_is_shown_without_figures_too(tmp_path: Path) -> None:
    stand_in = StandIn(is_ready=False, has_figures=False)
    async with visit(stand_in, tmp_path) as page:
        await page.until(f"{READY} === 'not ready'")
        stand_in.is_ready = True
        await page.until(f"{READY} === 'ready'")
        is_stale = "document.getElementById('figures').classList.contains('stale')"
        assert await page.evaluate(is_stale)
        stand_in.has_figures = True
        await page.until(f"!{is_stale} && document.querySelectorAll('#figures dt').length === 8")


async def test_a_server_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    server, url = start(StandIn())
    try:
        async with open_page(url, tmp_path) as page:
            await page.until(f"{READY} === 'ready'")
            await server.stop()
            await page.press("Enter")
            await page.until(f"{STATUS} === 'The server cannot be reached.' && {IS_OVER}")
            await page.until(f"{READY} === 'the server does not answer'")
            assert page.complaints == []
    finally:
        await server.stop()


async def test_a_fault_of_the_page_is_told_as_one(tmp_path: Path) -> None:
    stand_in = StandIn([chunk("a", {"step": 0, "no": "tokens"})], hangs=True)
    async with visit(stand_in, tmp_path) as page:
        await page.press("Enter")
        await page.until(f"{STATUS}.startsWith('This page has failed') && {IS_OVER}")
        async with asyncio.timeout(20):
            await stand_in.left.wait()
        [complaint] = page.complaints
        assert "TypeError" in complaint
        page.complaints.clear()


async def test_a_fault_in_the_figures_is_told_and_they_go_on(tmp_path: Path) -> None:
    async with visit(StandIn(), tmp_path) as page:
        await page.until(f"{READY} === 'ready'")
        await page.evaluate("figures.onDrafters = () => { window.shown = true; null.length; }")
        await page.until("window.shown")
        await page.evaluate("window.shown = false")
        await page.until("window.shown")
        assert await page.evaluate(READY) == "ready"
        assert page.complaints and all("TypeError" in complaint for complaint in page.complaints)
        page.complaints.clear()
