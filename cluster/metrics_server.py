"""A process's own metrics, over HTTP at an address of their own.

Every actor is a target of its own for Prometheus, so that one that hangs hides nobody else's
figures. Metrics hold counts, seconds and names from the configuration: no prompt, no key. There is
no access control; the address to listen on is the configuration's.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from actors.errors import UnavailableError
from actors.rpc import LOOPBACK
from actors.tls import TlsFiles
from cluster.ray_actors import Addresses

logger = logging.getLogger(__name__)

CLIENT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Target:
    """Where a process's metrics are, and what the process is.

    Attributes:
        address: `host:port`; the path is `/metrics`.
        labels: of every series from there.
    """

    address: str
    labels: Mapping[str, str]


def process_registry(part: str, index: int = 0) -> CollectorRegistry:
    """A registry with what is known of any process: its memory, processor time and files."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    labels = ["part", "index"]
    info = Gauge("treeserve_process_info", "What this process is.", labels, registry=registry)
    info.labels(part, str(index)).set(1)
    return registry


def watch_certificate(registry: CollectorRegistry, tls: TlsFiles) -> None:
    """Tell when this process's certificate ends; NaN while its file cannot be read."""

    def expires_at_s() -> float:
        try:
            return tls.expires_at().timestamp()
        except UnavailableError as error:
            logger.warning("%s", error)
            return math.nan

    Gauge(
        "treeserve_certificate_expiry_timestamp_seconds",
        "When the certificate for gRPC between the actors ends, or its authority's.",
        registry=registry,
    ).set_function(expires_at_s)


class _Handler(BaseHTTPRequestHandler):
    """Answers in the text format 0.0.4, whatever is asked for: in OpenMetrics the library writes
    the `:` of names as `_`."""

    timeout = CLIENT_TIMEOUT_S
    registry: CollectorRegistry

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = generate_latest(self.registry)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Scrapes are not worth a line each."""


class MetricsServer:
    """Serves a registry from a thread of its own.

    Args:
        registry: what to serve.
        host: address to listen on.
        ports: the first one that is free is used; 0 is any.
        node_host: the address under which the cluster knows this machine.

    Raises:
        UnavailableError: none is free.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str,
        ports: Iterable[int],
        node_host: str = LOOPBACK,
    ) -> None:
        handler = type("Handler", (_Handler,), {"registry": registry})
        for port in ports:
            try:
                self._server = ThreadingHTTPServer((host, port), handler)
            except OSError:
                continue
            self.address = f"{_reachable(host, node_host)}:{self._server.server_port}"
            self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
            self._thread.start()
            return
        raise UnavailableError(f"no free port for metrics at {host} (metrics.port_range)")

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _reachable(host: str, node_host: str) -> str:
    """What others call this machine, if `host` only says that all addresses are listened on."""
    if host not in ("0.0.0.0", "::"):
        return host
    return node_host if node_host != LOOPBACK else socket.gethostbyname(socket.gethostname())


class Actor(Protocol):
    """What serves a service of ours once it is started."""

    def start(self, host: str) -> str: ...


class ExposedActor:
    """An actor with its metrics; implements `ray_actors.ActorBody`."""

    def __init__(self, actor: Actor, metrics: MetricsServer) -> None:
        self._actor = actor
        self._metrics = metrics

    def start(self, host: str) -> Addresses:
        """Serve, both; `host` is where the service listens."""
        return Addresses(service=self._actor.start(host), metrics=self._metrics.address)
