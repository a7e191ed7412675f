"""An HTTP server for an ASGI application, inside an event loop that belongs to someone else."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn

from actors.errors import UnavailableError
from deploy.http_protocol import ConnectionLimits, guarded

KEEP_ALIVE_S = 65
"""Longer than the 60 s after which usual clients and balancers let go of an idle connection."""
STOP_GRACE_S = 5


def bound_socket(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket bound to an address, ready to listen.

    Args:
        shared: others of this user that ask for the same may listen there too.

    Raises:
        UnavailableError: it cannot be had; says why.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Else connections that ended a moment ago would hold up a restart for a minute.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise UnavailableError(f"cannot listen on {host}:{port}: {reason}") from error
    return listener


class HttpServer:
    """Serves an application; its lifespan is run by whoever owns it.

    Args:
        app: the ASGI application.
        host, port: where to listen, beside a server that this one is to replace.
        limits: of every connection.
    """

    def __init__(self, app: Any, host: str, port: int, limits: ConnectionLimits) -> None:  # noqa: ANN401
        self._socket = bound_socket(host, port, shared=True)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                access_log=False,
                log_config=None,
                http=guarded(limits),
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=STOP_GRACE_S,
            )
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to serve on the running loop."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    def require_running(self) -> None:
        """Raise UnavailableError if the server has ended."""
        if self._task is None or self._task.done():
            raise UnavailableError("the HTTP server has ended")

    def stop_listening(self) -> None:
        """Take no more connections; what comes on those that are open is answered."""
        for listening in self._server.servers:
            listening.close()

    async def stop(self) -> None:
        """Take no more connections, and return when those that are open have ended."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task])
