"""Every error of the HTTP library, mapped to the class of failure that it is. The one boundary."""

from __future__ import annotations

import aiohttp

from loadtest.answers import one_line
from loadtest.records import Outcome

# The first class that fits; more special ones stand before those they derive from.
MAPPING: tuple[tuple[type[BaseException], Outcome], ...] = (
    (aiohttp.ClientConnectorDNSError, Outcome.DNS),
    (aiohttp.ClientConnectorCertificateError, Outcome.TLS),
    (aiohttp.ClientSSLError, Outcome.TLS),
    (aiohttp.ClientConnectorError, Outcome.CONNECT),
    (aiohttp.ConnectionTimeoutError, Outcome.CONNECT),
    (aiohttp.SocketTimeoutError, Outcome.STALL),
    (aiohttp.ClientPayloadError, Outcome.RESET),
    (aiohttp.ServerDisconnectedError, Outcome.RESET),
    (aiohttp.ClientOSError, Outcome.RESET),
    (aiohttp.ClientResponseError, Outcome.NOT_A_STREAM),
    (aiohttp.InvalidURL, Outcome.CONNECT),
    (TimeoutError, Outcome.TIMEOUT),
    (OSError, Outcome.RESET),
)
FOREIGN = (aiohttp.ClientError, TimeoutError, OSError)
"""What the library may raise."""


def outcome_of(error: BaseException) -> Outcome:
    """The class of a failure.

    Raises:
        TypeError: for an error that is not of `FOREIGN`.
    """
    for kind, outcome in MAPPING:
        if isinstance(error, kind):
            return outcome
    if isinstance(error, aiohttp.ClientError):
        return Outcome.RESET
    raise TypeError(f"not an error of the HTTP library: {error!r}")


def outcome_of_status(status: int) -> Outcome:
    """The class of a status other than 200."""
    if status < 400:
        return Outcome.NOT_A_STREAM
    if status == 429:
        return Outcome.HTTP_429
    return Outcome.HTTP_5XX if status >= 500 else Outcome.HTTP_4XX


def describe(error: BaseException) -> str:
    """One line on it."""
    said = one_line(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
