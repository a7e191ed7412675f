"""Where processes that work together find each other when they start. Sockets only, no torch."""

from __future__ import annotations

import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Meeting:
    """An address that all of them know; each has its rank.

    Attributes:
        host, port: rank 0 listens there.
        listener: for rank 0, its listening socket as a file descriptor that it is given for good.
    """

    host: str
    port: int
    listener: int | None = None

    @classmethod
    def open(cls, host: str) -> Meeting:
        """Listen on a free port of `host`: for rank 0, in its own process."""
        listener = socket.create_server((host, 0))
        return cls(host, listener.getsockname()[1], listener.detach())

    @classmethod
    def at(cls, address: str) -> Meeting:
        """At `host:port`: for all others."""
        host, _, port = address.rpartition(":")
        return cls(host, int(port))

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"
