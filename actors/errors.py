"""Every error that TreeServe raises on purpose.

    TreeServeError
    ├── InputError            the caller asked for something wrong; names the field (HTTP 400)
    ├── ConfigError           a configuration is wrong; carries every mistake at once
    ├── ModelError            a model, tokenizer or vocabulary that cannot be served
    ├── OverloadedError       no room now, try again later (HTTP 429)
    ├── ExpiredError          it took longer than the server allows (HTTP 504)
    ├── UnavailableError      not ready, draining or recovering (HTTP 503)
    └── PeerError             another part of the cluster failed us
        ├── PeerUnavailable   it is gone or cannot be reached
        ├── PeerTimeout       it did not answer in time
        ├── StaleEpoch        it has moved on to a newer epoch than ours
        └── ProtocolError     what it sent, or what we sent it, breaks the protocol

Foreign errors are mapped at one boundary each: gRPC in `actors.rpc`, pydantic in
`cluster.config`, Ray in `cluster.ray_api`.
"""

from __future__ import annotations

from collections.abc import Sequence


class TreeServeError(Exception):
    """Root of the tree."""


class InputError(TreeServeError):
    """A request that can never succeed as it stands.

    Args:
        message: what is wrong, for the person who sent it.
        param: the field at fault, as the caller wrote it.
        code: a stable word for programs.
    """

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str | None, str]]:
        return type(self), (self.message, self.param, self.code)


class ConfigError(TreeServeError):
    """One or more mistakes in a configuration, all found in one go."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class ModelError(TreeServeError):
    """A model, tokenizer or vocabulary that cannot be served; says why."""


class OverloadedError(TreeServeError):
    """Queues are full; the same request may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type[OverloadedError], tuple[str, float]]:
        return type(self), (self.message, self.retry_after_s)


class ExpiredError(TreeServeError):
    """A request took longer than the server allows."""


class UnavailableError(TreeServeError):
    """The server is starting, draining or recovering."""


class PeerError(TreeServeError):
    """Another part of the cluster failed us."""


class PeerUnavailable(PeerError):
    """The peer is gone or cannot be reached."""


class PeerTimeout(PeerError):
    """The peer did not answer within the deadline."""


class StaleEpoch(PeerError):
    """The message belongs to an epoch that the peer has left behind."""


class ProtocolError(PeerError):
    """A message that breaks the protocol."""
