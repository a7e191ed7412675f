"""An OpenTelemetry collector that keeps what it is sent (OTLP over HTTP, protobuf)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class SentSpan(NamedTuple):
    """A span as it came; ids in hexadecimal, empty for no parent.

    Attributes:
        service: of the process that sent it.
    """

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]


class Collector:
    """What has come so far.

    Attributes:
        url: where to send to.
        bodies: as they came.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []

    def spans(self, trace_id: str) -> list[SentSpan]:
        """Of one trace."""
        found = [span for body in list(self.bodies) for span in _spans(body)]
        return [span for span in found if span.trace_id == trace_id]


@contextmanager
def running_collector() -> Iterator[Collector]:
    """One that listens on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_right = self.path == "/v1/traces"
            if is_right:
                collector.bodies.append(body)
            self.send_response(200 if is_right else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield collector
        server.shutdown()
        thread.join()


def _spans(body: bytes) -> Iterator[SentSpan]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _values(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                yield SentSpan(service, span.name, *ids, _values(span.attributes))


def _values(attributes: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(one) for one in value.array_value.values]
        return getattr(value, kind)

    return {entry.key: plain(entry.value) for entry in attributes}
