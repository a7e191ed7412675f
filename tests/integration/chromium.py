"""A page in a real Chromium, driven through its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from cluster.bench.server import free_port

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
"""None where there is no Chromium."""

PATIENCE_S = 60.0
"""Far longer than anything here takes; only a hang runs into it."""
POLL_S = 0.05

FLAGS = (
    "--headless",
    "--hide-scrollbars",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-extensions",
    "--no-first-run",
    "--no-proxy-server",
)
KEYS = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    " ": (32, " "),
    "End": (35, ""),
    "Home": (36, ""),
    "ArrowLeft": (37, ""),
    "ArrowRight": (39, ""),
    "/": (191, "/"),
}
"""For each named key its Windows virtual key code, which the protocol wants, and its text."""


class Page:
    """One tab.

    Attributes:
        complaints: what the browser had to complain of: exceptions, errors, violated policies.
        urls: of everything that was asked for.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        self.urls: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, PATIENCE_S)

    async def listen(self) -> None:
        """Take what the browser says, until it ends."""
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                answer = self._answers.pop(said["id"])
                if "error" in said:
                    answer.set_exception(AssertionError(said["error"]))
                else:
                    answer.set_result(said["result"])
            else:
                self._note(said["method"], said["params"])

    def _note(self, method: str, said: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(said["exceptionDetails"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            if said["entry"]["source"] != "network":  # a status, which is the page's business
                self.complaints.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.urls.append(said["request"]["url"])

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait for a JavaScript expression to be true."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await self.evaluate(condition):
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise TimeoutError(f"never came true: {condition}") from None

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key, as a person would."""
        code, text = KEYS[key]
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def write(self, text: str) -> None:
        """Put text in where the focus is."""
        await self.call("Input.insertText", text=text)

    async def look(self, scheme: str, width: int, height: int) -> None:
        """How large the window is, and whether its reader likes it `light` or `dark`."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def screenshot(self) -> bytes:
        """The whole page, also what is below the window's edge, as PNG."""
        picture = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(picture["data"])


@asynccontextmanager
async def open_page(url: str, folder: Path) -> AsyncIterator[Page]:
    """The page at `url` in a Chromium of its own, whose profile is in `folder`."""
    assert PROGRAM is not None
    port = free_port()
    as_root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    own = (f"--remote-debugging-port={port}", f"--user-data-dir={folder}")
    browser = await asyncio.create_subprocess_exec(
        PROGRAM, *FLAGS, *as_root, *own, "about:blank", stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        async with aiohttp.ClientSession() as session:
            address = await _tab(session, f"http://127.0.0.1:{port}/json/list", browser)
            async with session.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                await page.open(url)
                yield page
                listening.cancel()
    finally:
        if browser.returncode is None:
            browser.terminate()
        await browser.wait()


async def _tab(session: aiohttp.ClientSession, url: str, browser: Process) -> str:
    """The address of the browser's first tab, once it listens."""
    async with asyncio.timeout(PATIENCE_S):
        while browser.returncode is None:
            with suppress(aiohttp.ClientConnectionError, StopIteration):
                async with session.get(url) as answer:
                    targets = await answer.json()
                tab = next(target for target in targets if target["type"] == "page")
                return str(tab["webSocketDebuggerUrl"])
            await asyncio.sleep(POLL_S)
    raise AssertionError(f"Chromium has ended with {browser.returncode}")
