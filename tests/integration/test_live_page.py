"""The live page in a real Chromium (Debian's package): a visit to a running server, by keyboard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chromium import PATIENCE_S, POLL_S, PROGRAM, Page, open_page
from conftest import Server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.model,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium (Debian package chromium)"),
]

QUESTION = "Repeat after me: one two three four five six. one two three four"
STORY = "Tell me a long story about a fox."
IS_OVER = "document.getElementById('send').disabled === false"
PNG = b"\x89PNG"
LITTLE = 20_000
"""Bytes that a picture with hardly anything in it has at most."""
HALF_LIGHT = 3 * 128


@pytest.fixture
async def page(server: Server, tmp_path: Path) -> AsyncIterator[Page]:
    async with open_page(f"{server.url}/", tmp_path) as page:
        await page.look("light", 1280, 900)
        yield page
        assert page.complaints == []
        assert all(url.startswith((server.url, "data:")) for url in page.urls), page.urls


async def value(page: Page, selector: str, name: str = "textContent") -> Any:
    return await page.evaluate(f"document.querySelector({json.dumps(selector)}).{name}")


async def how_many(page: Page, selector: str) -> int:
    return int(await page.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))


def client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S, trust_env=False)


async def ask(page: Page, question: str, max_tokens: int) -> None:
    """Put a question by keyboard; the prompt has the focus, and its text is selected."""
    await page.evaluate(f"document.getElementById('max-tokens').value = {max_tokens}")
    await page.write(question)
    await page.press("Enter")


async def own_text(server: Server, question: str, max_tokens: int) -> str:
    """What the server says to it without drafts, and without anybody watching."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "speculation": {"enabled": False},
    }
    async with client(server) as asking:
        answer = await asking.post("/v1/chat/completions", json=body)
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_somebody_asks_and_watches(page: Page, server: Server) -> None:
    await page.until("document.getElementById('ready').textContent === 'ready'")
    assert await value(page, "#model") == server.model
    assert await page.evaluate("document.activeElement.id") == "prompt"
    await ask(page, QUESTION, 32)
    await page.until("document.getElementById('send').disabled")
    await page.until(IS_OVER)
    assert (await value(page, "#status")).startswith("Done")
    assert await value(page, "#answer") == await own_text(server, QUESTION, 32)

    shown = await page.evaluate("steps.steps")
    assert await how_many(page, ".bar") == len(shown)
    drafters = {name for step in shown for by in step["drafters"] for name in by}
    assert drafters and drafters <= {"ssm", "prompt_lookup"}  # who was in time
    richest = max(range(len(shown)), key=lambda index: len(shown[index]["tokens"]))
    await page.evaluate(f"steps.go({richest})")
    step = shown[richest]
    num_own = len(step["committed"]) - len(step["accepted"])
    assert await how_many(page, "#tree .node") == len(step["tokens"]) + num_own
    assert await how_many(page, "#tree .node.accepted") == len(step["accepted"])
    assert await how_many(page, "#tree .node.own") == num_own
    assert await how_many(page, "#tree .edge") == len(step["tokens"]) + num_own - 1
    assert "drafted" in await value(page, "#tree svg", "ariaLabel")
    assert await how_many(page, "#legend tbody tr") >= 1
    assert await how_many(page, "#phases .phase-bar i") == 10
    assert await how_many(page, "#figures dt") == 8


async def test_somebody_stops_an_answer(page: Page, server: Server) -> None:
    await ask(page, STORY, 1500)
    await page.until("steps.steps.length > 3")
    await page.press("Escape")
    await page.until(IS_OVER)
    assert (await value(page, "#status")).startswith("Stopped")
    num_steps = await page.evaluate("steps.steps.length")
    idle = f'treeserve_requests_running{{model_name="{server.model}"}} 0.0'
    async with asyncio.timeout(PATIENCE_S), client(server) as asking:
        while idle not in (await asking.get("/metrics")).text:
            await asyncio.sleep(POLL_S)
    assert await page.evaluate("steps.steps.length") == num_steps


async def test_steps_are_browsed_by_keyboard(page: Page) -> None:
    await ask(page, STORY, 24)
    await page.until(f"steps.steps.length > 3 && {IS_OVER}")
    last = await page.evaluate("steps.steps.length - 1")
    await page.until(f"steps.shown === {last}")
    await page.press("Escape")  # nothing runs: to the steps
    assert await page.evaluate("document.activeElement.id") == "bars"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert await page.evaluate(outline) == "solid"
    for key, shown in (
        ("ArrowLeft", last - 1),
        ("Home", 0),
        ("ArrowLeft", 0),
        ("ArrowRight", 1),
        ("End", last),
        ("ArrowRight", last),
    ):
        await page.press(key)
        assert await page.evaluate("steps.shown") == shown
        assert await value(page, "#bars", "ariaValueNow") == str(shown + 1)
    await page.press("Home")
    await page.press(" ")
    assert await value(page, "#play", "ariaPressed") == "true"
    await page.until("steps.shown > 0")
    await page.press(" ")
    assert await value(page, "#play", "ariaPressed") == "false"
    await page.press("/")
    assert await page.evaluate("document.activeElement.id") == "prompt"


async def test_the_focus_goes_through_the_page_in_order(page: Page) -> None:
    await page.until("!document.getElementById('drafters').hidden")
    await ask(page, QUESTION, 8)
    await page.until(f"steps.steps.length && {IS_OVER}")
    order = []
    for _ in range(30):
        order.append(
            await page.evaluate("document.activeElement.id || document.activeElement.tagName")
        )
        if order[-1] == "BODY":
            break
        await page.press("Tab")
    wanted = ["prompt", "mode", "max-tokens", "temperature", "send", "answer", "bars", "tree"]
    assert [name for name in order if name in wanted] == wanted


async def test_it_fits_its_window_in_light_and_dark(page: Page) -> None:
    await ask(page, QUESTION, 16)
    await page.until(f"steps.steps.length && {IS_OVER}")
    background = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    for width in (1280, 900, 390):
        for scheme in ("light", "dark"):
            await page.look(scheme, width, 900)
            assert await page.evaluate("document.documentElement.scrollWidth") == width
            is_dark = sum(await page.evaluate(background)) < HALF_LIGHT
            assert is_dark == (scheme == "dark")
            picture = await page.screenshot()
            assert picture.startswith(PNG)
            assert len(picture) > LITTLE
