"""The server under test: its address, and what every request to it carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from loadtest.errors import UsageError
from loadtest.plan import Message, PlannedRequest

CHAT, COMPLETIONS = "chat", "completions"
INDEX_HEADER = "X-Loadtest-Index"
"""Tells a server's log, and the stub's script, which planned request this is."""
PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions"}


@dataclass(frozen=True)
class Target:
    """One arm of a measurement.

    Attributes:
        name: of the arm, in reports.
        base_url: scheme, host, port and any prefix before `/v1`.
        endpoint: `chat` or `completions`.
        model: sent as `model`.
        api_key: sent as a bearer token; never shown.
        overrides: fields of every body to this arm.
        counting: fields that make the server tell token counts (see `loadtest.probe`).
        max_context: tokens; None if the server does not say.
    """

    name: str
    base_url: str
    endpoint: str = CHAT
    model: str = ""
    api_key: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    counting: dict[str, Any] = field(default_factory=dict)
    max_context: int | None = None

    @property
    def url(self) -> str:
        return self.base_url + PATHS[self.endpoint]

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers

    def body(self, planned: PlannedRequest, history: Sequence[Message]) -> dict[str, Any]:
        """What to post for one request."""
        messages = [*history, *planned.messages]
        if self.endpoint == CHAT:
            content: dict[str, Any] = {"messages": messages}
        else:
            content = {"prompt": "\n\n".join(message["content"] for message in messages)}
        return {
            "model": self.model,
            **content,
            "stream": True,
            **self.counting,
            **planned.params,
            **self.overrides,
        }


def base_url(text: str) -> str:
    """An address as people write it, brought to the part before `/v1`.

    Raises:
        UsageError: if it is no HTTP address.
    """
    address = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or not text.isprintable() or " " in text:
        raise UsageError(
            f"{text!r}: not an address like http://127.0.0.1:8000 or http://[::1]:8000"
        )
    if parts.username is not None:
        raise UsageError("an address with a user or a password: give --api-key-file instead")
    if parts.query or parts.fragment:
        raise UsageError(f"{text}: an address without ? and #")
    path = parts.path.rstrip("/")
    for known in (*PATHS.values(), "/v1"):
        path = path.removesuffix(known)
    return f"{parts.scheme}://{parts.netloc}{path}"
