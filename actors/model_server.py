"""A model behind a gRPC server, as the shells of LLM ranks and draft models have it.

The model is touched by one thread alone, which lives as long as the server: torch's OpenMP pool
belongs to the thread that calls it, and a client that comes back on a new stream queues behind what
its old one asked for. Knows neither torch nor Ray: a `ModelServer` is a plain object that a Ray
actor can be made of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import grpc

from actors import rpc
from actors.errors import PeerError
from actors.model_thread import ModelThread
from actors.tls import TlsFiles

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class ModelServer:
    """A server that starts when it is told to.

    Args:
        services: what registers a service, by the service's full name.
        thread: the model's; closed together with the server.
        ports: the first one that is free is used; 0 is any.
        tls: its certificate; None for none.
    """

    def __init__(
        self,
        services: Mapping[str, Callable[[grpc.Server], None]],
        thread: ModelThread,
        ports: Iterable[int],
        tls: TlsFiles | None = None,
    ) -> None:
        self._server = rpc.Server(services, tls)
        self._thread = thread
        self._ports = tuple(ports)
        self._address: str | None = None

    def start(self, host: str = rpc.LOOPBACK) -> str:
        """Serve; returns `host:port`. A second call returns the same address.

        Args:
            host: address to listen on; peers must be able to reach it.

        Raises:
            UnavailableError: no port is free, or a file of `tls` cannot be read.
        """
        if self._address is None:
            self._address = self._server.start(host, self._ports)
        return self._address

    def ping(self) -> str | None:
        """Answers while the process lives: the address served at, None before `start`."""
        return self._address

    def stop(self, grace_s: float = 5.0) -> None:
        """End all calls within `grace_s` seconds; what still runs is left to finish."""
        self._server.stop(grace_s)
        self._thread.close()


def run_for_peer(
    thread: ModelThread, work: Callable[[], Answer], context: grpc.ServicerContext, name: str
) -> Answer:
    """Run a call's `work` on the model's thread; a failure ends the call with our error's status.

    Args:
        name: of the work, for errors and the log.
    """
    try:
        return thread.run(work)
    except PeerError as error:
        logger.warning("%s refused: %s: %s", name, type(error).__name__, error)
        rpc.abort(context, error)
        raise
    except Exception as error:  # whatever it is, it ends this call and not the actor
        logger.exception("%s failed", name)
        rpc.abort(context, PeerError(f"{name} failed: {type(error).__name__}: {error}"))
        raise
