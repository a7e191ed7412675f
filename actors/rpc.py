"""gRPC as all actors use it: channels, servers, deadlines, and errors.

Everything that has to be equal on both sides stands here once: message sizes, keepalive, health
and reflection, and the one mapping between our errors and gRPC's status codes. Servers listen on
loopback unless told otherwise; channels ignore HTTP proxies of the environment. With TLS (see
`actors.tls`) both sides show certificates; a server looks at its files again for each new
connection, and a client for each channel, so that renewed ones are taken up without a restart.

A stream has no deadline of its own: keepalive notices a dead peer, and whoever waits for an answer
on a stream bounds that wait.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from actors.errors import (
    PeerError,
    PeerTimeout,
    PeerUnavailable,
    ProtocolError,
    StaleEpoch,
    UnavailableError,
)
from actors.tls import PEER_NAME, PemFiles, TlsFiles

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000

_COMMON_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
)
CHANNEL_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
SERVER_OPTIONS = (
    *_COMMON_OPTIONS,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    # A starved machine sends its pings in a bunch; that is no reason to hang up.
    ("grpc.http2.max_ping_strikes", 0),
    # Without this two servers may share a port, and each gets half of the calls.
    ("grpc.so_reuseport", 0),
)

STATUS_OF_ERROR: Mapping[type[PeerError], grpc.StatusCode] = {
    PeerError: grpc.StatusCode.INTERNAL,
    PeerUnavailable: grpc.StatusCode.UNAVAILABLE,
    PeerTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    StaleEpoch: grpc.StatusCode.FAILED_PRECONDITION,
    ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
}
ERROR_OF_STATUS: Mapping[grpc.StatusCode, type[PeerError]] = {
    # A stream that ends in good order while an answer is awaited: the peer has left.
    grpc.StatusCode.OK: PeerUnavailable,
    grpc.StatusCode.CANCELLED: PeerUnavailable,
    grpc.StatusCode.UNKNOWN: PeerError,
    grpc.StatusCode.INVALID_ARGUMENT: ProtocolError,
    grpc.StatusCode.DEADLINE_EXCEEDED: PeerTimeout,
    grpc.StatusCode.NOT_FOUND: ProtocolError,
    grpc.StatusCode.ALREADY_EXISTS: ProtocolError,
    grpc.StatusCode.PERMISSION_DENIED: PeerUnavailable,
    grpc.StatusCode.UNAUTHENTICATED: PeerUnavailable,
    # gRPC's own word for a message above the size limit.
    grpc.StatusCode.RESOURCE_EXHAUSTED: ProtocolError,
    grpc.StatusCode.FAILED_PRECONDITION: StaleEpoch,
    grpc.StatusCode.ABORTED: PeerUnavailable,
    grpc.StatusCode.OUT_OF_RANGE: ProtocolError,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolError,
    grpc.StatusCode.INTERNAL: PeerError,
    grpc.StatusCode.UNAVAILABLE: PeerUnavailable,
    grpc.StatusCode.DATA_LOSS: ProtocolError,
}

BROKEN_OFF = "Internal error from Core"
"""What `grpc.aio` says, as INTERNAL, of a stream that broke while a message was on its way out."""

Reply = TypeVar("Reply")


class RpcFailure(Protocol):
    """What a failed call tells: the errors of `grpc` and `grpc.aio`, and finished calls."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...


def peer_error(failure: RpcFailure, peer: str) -> PeerError:
    """Our error for a call to `peer` that ended with `failure`; keeps its text."""
    code = failure.code()
    if failure.details() == BROKEN_OFF:
        code = grpc.StatusCode.UNAVAILABLE
    return ERROR_OF_STATUS[code](f"{peer}: {failure.details() or code.name.lower()}")


def abort(context: grpc.ServicerContext, error: PeerError) -> None:
    """End the call that `context` serves with the status of `error`, by raising; keeps its text."""
    context.abort(STATUS_OF_ERROR[type(error)], str(error))


def open_channel(address: str, tls: TlsFiles | None = None) -> grpc.aio.Channel:
    """A channel for the running event loop; connects on first use.

    Raises:
        PeerUnavailable: a file of `tls` cannot be read.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, CHANNEL_OPTIONS)
    try:
        files = tls.read()
    except UnavailableError as error:
        raise PeerUnavailable(f"{address}: {error}") from error
    credentials = grpc.ssl_channel_credentials(files.ca, files.key, files.cert)
    options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", PEER_NAME))
    return grpc.aio.secure_channel(address, credentials, options)


async def call(
    method: Callable[..., Awaitable[Reply]],
    request: object,
    peer: str,
    timeout_s: float,
    wait_for_ready: bool = True,
) -> Reply:
    """Call a unary method of a stub.

    Args:
        wait_for_ready: wait within the deadline for a `peer` that cannot be reached; else fail.

    Raises:
        PeerError: what `peer_error` makes of the failure.
    """
    try:
        return await method(request, timeout=timeout_s, wait_for_ready=wait_for_ready)
    except grpc.aio.AioRpcError as failure:
        raise peer_error(failure, peer) from failure


def _server_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """What a server listens with. Raises UnavailableError: a file cannot be read."""
    served = tls.read()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        try:
            found = tls.read()
        except UnavailableError as error:
            logger.warning("the certificate stays as it was: %s", error)
            return None
        if found == served:
            return None
        served = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served), renewed, require_client_authentication=True
    )


def _configuration(files: PemFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.cert)], files.ca)


class Server:
    """A gRPC server with the standard health and reflection services.

    Args:
        services: what registers a service, by the service's full name.
        tls: this side's certificate; None serves whoever connects.
        num_threads: calls served at once; an open stream holds a thread.
    """

    def __init__(
        self,
        services: Mapping[str, Callable[[grpc.Server], None]],
        tls: TlsFiles | None = None,
        num_threads: int = 16,
    ) -> None:
        self._tls = tls
        self._names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._health = health.HealthServicer()
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="grpc")
        self._server = grpc.server(self._threads, options=SERVER_OPTIONS)
        for register in services.values():
            register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(self._names, self._server)

    def start(
        self,
        host: str = LOOPBACK,
        ports: Iterable[int] = (0,),
    ) -> str:
        """Listen on the first of `ports` that is free (0: any) and serve; returns `host:port`.

        Raises:
            UnavailableError: none is free, or a file of `tls` cannot be read.
        """
        address = self._bind(host, ports)
        self._server.start()
        for name in (health.OVERALL_HEALTH, *self._names):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return address

    def stop(self, grace_s: float) -> None:
        """Say NOT_SERVING, refuse new calls, give running ones `grace_s` to end, cut the rest."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait()
        self._threads.shutdown(wait=False)

    def _bind(self, host: str, ports: Iterable[int]) -> str:
        credentials = None if self._tls is None else _server_credentials(self._tls)
        for port in ports:
            try:
                if credentials is None:
                    bound = self._server.add_insecure_port(f"{host}:{port}")
                else:
                    bound = self._server.add_secure_port(f"{host}:{port}", credentials)
            except RuntimeError:
                continue
            return f"{host}:{bound}"
        raise UnavailableError(f"no free port to listen on at {host}")
