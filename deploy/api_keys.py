"""API keys: a file with one key a line, and who sent a request.

Empty lines and lines that begin with `#` are left out. A key that is sent is compared with every
key in constant time, so that neither the time nor the place of a match tells anything. Keys are
never logged and stand in no message.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from pathlib import Path

from actors.errors import ConfigError, InputError

MIN_KEY_LENGTH = 16
ANYONE = 0
"""Who sends a request to a server without keys."""


class InvalidKey(InputError):
    """No key was sent, or a wrong one (HTTP 401)."""

    def __init__(self) -> None:
        super().__init__(
            "no valid API key was sent; send Authorization: Bearer YOUR_API_KEY",
            code="invalid_api_key",
        )

    def __reduce__(self) -> tuple[type[InvalidKey], tuple[()]]:  # type: ignore[override]
        return type(self), ()


class ApiKeys:
    """The keys that a server takes; none lets everybody in."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = [key.encode() for key in keys]

    def holder(self, authorization: str | None) -> int:
        """The number of the key in a request's Authorization header.

        Raises:
            InvalidKey: there is none, or it is not one of ours.
        """
        if not self._keys:
            return ANYONE
        scheme, _, sent = (authorization or "").partition(" ")
        found = None
        for number, key in enumerate(self._keys):
            if hmac.compare_digest(key, sent.strip().encode(errors="replace")):
                found = number
        if found is None or scheme.lower() != "bearer":
            raise InvalidKey
        return found


def read_keys(path: Path) -> list[str]:
    """The keys in a file.

    Raises:
        ConfigError: it cannot be read, holds no key, or one that is no good.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII text"
        raise ConfigError([f"api.api_keys_file: {path} cannot be read: {reason}"]) from error
    keys: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if len(key) < MIN_KEY_LENGTH or " " in key or not key.isprintable():
            what = f"a key has at least {MIN_KEY_LENGTH} printable characters and no spaces"
            raise ConfigError([f"api.api_keys_file: {path}, line {number}: {what}"])
        keys[key] = None
    if not keys:
        raise ConfigError([f"api.api_keys_file: {path} holds no key"])
    return list(keys)
