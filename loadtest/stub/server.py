"""The stub server: plays a script over HTTP, and writes down when each chunk was really sent.

Its record is exact where a wish is not: on a busy machine a pause of 10 ms may last 12, and what
the harness should then have measured is 12. Times are of the machine's monotonic clock, so they
compare with those of a harness on the same machine.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from loadtest.stub.frames import Frames
from loadtest.stub.script import Behaviour, Script
from loadtest.target import INDEX_HEADER

MODEL = "stub"
MAX_BODY_BYTES = 1 << 30


@dataclass
class Sent:
    """What was sent to one request.

    Attributes:
        index: which planned request asked; -1 for one that only asks whether we are there.
        arrived_s: when the request had come.
        started_s: when it left the queue.
        chunks: time of writing, and tokens, of each chunk.
        ended_s: when the stream was closed, by either side.
    """

    index: int
    arrived_s: float
    started_s: float = 0.0
    chunks: list[tuple[float, int]] = field(default_factory=list)
    ended_s: float = 0.0


class StubServer:
    """Serves while its body runs.

    Args:
        script: what to do.
        host, port: where; port 0 for any.
        log: a file that gets a line for each request.
    """

    def __init__(
        self, script: Script, host: str = "127.0.0.1", port: int = 0, log: Path | None = None
    ) -> None:
        self._script = script
        self._host, self._port = host, port
        self._log = log
        self._slots = asyncio.Semaphore(script.max_running or 1_000_000)
        self._first_s: float | None = None
        self._num_running = 0
        self._num_waiting = 0
        self._num_sent_tokens = 0
        self._runner: web.AppRunner | None = None
        self.sent: list[Sent] = []
        self.address = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/completions", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
        await site.start()
        port = self._runner.addresses[0][1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        context = self._script.max_model_len
        return web.json_response({"data": [{"id": MODEL, "max_model_len": context}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = (
            "# TYPE stub_requests_running gauge",
            f"stub_requests_running {self._num_running}",
            "# TYPE stub_requests_waiting gauge",
            f"stub_requests_waiting {self._num_waiting}",
            "# TYPE stub_generation_tokens counter",
            f"stub_generation_tokens_total {self._num_sent_tokens}",
        )
        return web.Response(text="\n".join(lines) + "\n")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        # Other clients than the harness are numbered as they come.
        sent = Sent(int(request.headers.get(INDEX_HEADER, len(self.sent))), _now_s())
        body = await request.json()
        behaviours = self._script.behaviours
        behaviour = Behaviour(counts=behaviours[0].counts)
        if sent.index >= 0:
            behaviour = behaviours[sent.index % len(behaviours)]
            self._first_s = self._first_s or sent.arrived_s
            self.sent.append(sent)
        self._num_waiting += 1
        try:
            async with self._slots:
                self._num_waiting -= 1
                self._num_running += 1
                sent.started_s = _now_s()
                return await self._play(request, body, behaviour, sent)
        except ConnectionError:  # the client hung up
            return web.StreamResponse()
        finally:
            self._num_running -= bool(sent.started_s)
            self._num_waiting -= not sent.started_s
            sent.ended_s = _now_s()
            self._write_log(sent)

    async def _play(
        self, request: web.Request, body: dict[str, Any], behaviour: Behaviour, sent: Sent
    ) -> web.StreamResponse:
        if behaviour.status != 200:
            error = {"message": f"scripted status {behaviour.status}", "type": "scripted"}
            return web.json_response({"error": error}, status=behaviour.status)
        if behaviour.content == "json":
            return web.json_response({"choices": []})
        if behaviour.content == "html":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        if behaviour.reset_after == 0:
            return self._reset(request, web.StreamResponse())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        return await self._stream(request, response, body, behaviour, sent)

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        body: dict[str, Any],
        behaviour: Behaviour,
        sent: Sent,
    ) -> web.StreamResponse:
        frames = Frames(behaviour, body, chat=request.path.endswith("chat/completions"))
        for frame in frames.opening():
            await response.write(frame)
        due_s = sent.started_s
        for number, (pause_s, tokens) in enumerate(behaviour.chunks(frames.max_tokens)):
            due_s = max(due_s + pause_s, self._thaw_s(due_s + pause_s))
            await asyncio.sleep(max(0.0, due_s - _now_s()))
            if number == behaviour.reset_after:
                return self._reset(request, response)
            if number == behaviour.truncate_after:
                return response
            if number == behaviour.error_after:
                await response.write(frames.error())
                return response
            if number == behaviour.garbage_after:
                await response.write(frames.garbage())
                return response
            frame = frames.chunk(tokens)
            sent.chunks.append((_now_s(), tokens))
            self._num_sent_tokens += tokens
            await response.write(frame)
        for frame in frames.closing():
            await response.write(frame)
        return response

    def _thaw_s(self, due_s: float) -> float:
        """When what is due at `due_s` may go on: later, if it falls into the freeze."""
        if self._script.freeze_at_s is None or self._first_s is None:
            return due_s
        start_s = self._first_s + self._script.freeze_at_s
        end_s = start_s + self._script.freeze_s
        return end_s if start_s <= due_s < end_s else due_s

    def _reset(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return response

    def _write_log(self, sent: Sent) -> None:
        if self._log is not None and sent.index >= 0:
            with self._log.open("a") as file:
                file.write(json.dumps(asdict(sent)) + "\n")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
