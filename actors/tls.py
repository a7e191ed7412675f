"""TLS on both sides of the gRPC between manager and actors, from files on each machine.

Each side shows a certificate and takes the other's if the same authority has signed it; a server's
must be for `PEER_NAME`, since actors come and go under changing addresses. What gRPC makes of the
files stands in `actors.rpc`.
"""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from actors.errors import UnavailableError

FileName = Annotated[str, Field(min_length=1)]

PEER_NAME = "treeserve"
"""A DNS name of every server's certificate."""


class TlsFiles(BaseModel):
    """PEM files, under the same names on every machine.

    Attributes:
        ca: certificates of the authority that has signed both sides'.
        cert: this side's certificate, fit for a server and for a client, with those that stand
            between it and the authority.
        key: its private key, without a passphrase.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ca: FileName
    cert: FileName
    key: FileName

    def check(self) -> None:
        """Shake hands with oneself, as manager and actors will.

        Raises:
            UnavailableError: a file cannot be read or is something else, the key is another
                certificate's, or this one has ended, is for another name or of another authority.
        """
        self.expires_at()
        try:
            server, client = self._context(ssl.PROTOCOL_TLS_SERVER), self._context()
            _shake_hands(client, server)
        except (OSError, ValueError) as error:
            reason = getattr(error, "verify_message", "") or error
            raise UnavailableError(f"{self.cert} is of no use: {reason}") from error

    def _context(self, role: int = ssl.PROTOCOL_TLS_CLIENT) -> ssl.SSLContext:
        context = ssl.SSLContext(role)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.ca)
        context.load_cert_chain(self.cert, self.key, password=_refuse_passphrase)
        return context

    def expires_at(self) -> datetime:
        """When the first of these certificates ends.

        Raises:
            UnavailableError: a file cannot be read, or holds no certificate.
        """
        from cryptography import x509

        ends = []
        for path in (self.ca, self.cert):
            try:
                found = x509.load_pem_x509_certificates(_read(path))
            except ValueError as error:
                raise UnavailableError(f"{path} holds no certificate: {error}") from error
            ends += [certificate.not_valid_after_utc for certificate in found]
        return min(ends)

    def read(self) -> PemFiles:
        """Raises UnavailableError: a file cannot be read."""
        return PemFiles(_read(self.ca), _read(self.cert), _read(self.key))


class PemFiles(NamedTuple):
    """The content of the files."""

    ca: bytes
    cert: bytes
    key: bytes


def _refuse_passphrase() -> str:
    raise ValueError("its key has a passphrase")


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Between the two, in memory. Raises SSLError."""
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    waiting = [
        client.wrap_bio(one, other, server_hostname=PEER_NAME),
        server.wrap_bio(other, one, server_side=True),
    ]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnavailableError(f"a certificate's file cannot be read: {error}") from error
