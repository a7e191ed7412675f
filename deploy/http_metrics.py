"""What the ingress counts of HTTP, and where Prometheus finds every process.

`/metrics` is the whole picture of one server, for people and benchmark clients. Prometheus is
better given `/metrics/targets` (HTTP service discovery), which names every process by itself: the
ingress's own figures are at `/metrics/ingress` there, so that nothing is counted twice.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.metric_maker import MetricMaker
from cluster.metrics_server import process_registry
from deploy.backend import Backend
from deploy.openapi import ERROR_RESPONSE
from deploy.streaming import BROKEN

ROUTES = ("/v1/completions", "/v1/chat/completions")
STATUSES = ("2xx", "4xx", "429", "5xx", "broken")
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OWN_PATH = "/metrics/ingress"


class HttpMetrics:
    """Counts the requests for generation.

    Args:
        model_name: the label of all of them.
    """

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._process = process_registry("ingress")
        make = MetricMaker(self._registry, model_name)
        self._answered = make.counters(
            "treeserve_http_requests",
            "Requests answered, by route and by status; broken: an error after the stream began.",
            "route",
            "status",
        )
        self.inside = make.gauge("treeserve_http_requests_inside", "Requests not answered yet.")
        for route in ROUTES:
            for status in STATUSES:
                self._answered(route, status)

    def answered(self, route: str, status: int, broken: bool) -> None:
        shown = "429" if status == 429 else f"{status // 100}xx"
        self._answered(route, "broken" if broken else shown).inc()

    def text(self) -> str:
        """What is counted of HTTP."""
        return generate_latest(self._registry).decode()

    def whole_text(self) -> str:
        """That, and what is known of the process."""
        return generate_latest(self._process).decode() + self.text()


class WatchedSend:
    """An ASGI `send` that remembers the status of what is answered.

    Attributes:
        status: None before there is an answer.
        is_complete: the whole answer has been sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True


def is_generation(scope: Scope) -> bool:
    """True for requests for generation."""
    return scope["type"] == "http" and scope["path"] in ROUTES


class Counted:
    """An ASGI application, counted."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_generation(scope):
            await self._app(scope, receive, send)
            return
        watched = WatchedSend(send)
        state = scope.setdefault("state", {})
        with self._metrics.inside.track_inprogress():
            try:
                await self._app(scope, receive, watched)
            finally:
                if watched.status is not None:  # else the client left before there was an answer
                    self._metrics.answered(scope["path"], watched.status, BROKEN in state)


def add_metrics_routes(app: FastAPI, backend: Backend, metrics: HttpMetrics) -> None:
    """`/metrics`, what Prometheus wants of this process, and where it finds the others."""

    @app.get("/metrics", responses={503: ERROR_RESPONSE})
    async def everything() -> Response:
        return _prometheus(await backend.metrics_text() + metrics.text())

    @app.get(OWN_PATH)
    async def own() -> Response:
        return _prometheus(metrics.whole_text())

    @app.get("/metrics/targets", responses={503: ERROR_RESPONSE})
    async def targets(request: Request) -> list[dict[str, Any]]:
        """Prometheus HTTP service discovery."""
        ingress = {"part": "ingress", "index": "0", "__metrics_path__": OWN_PATH}
        found = [(request.url.netloc, ingress)]
        found += [(target.address, dict(target.labels)) for target in await backend.targets()]
        return [{"targets": [address], "labels": labels} for address, labels in found]


def _prometheus(text: str) -> Response:
    return Response(text, media_type=PROMETHEUS_TYPE)
