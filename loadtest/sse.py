"""Server-sent events out of a stream of bytes, as they come (WHATWG HTML, 9.2.6).

Only the `data` field matters to this API; comments and other fields are skipped. The byte order
mark that the standard allows at the very start is not expected.
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventSplitter:
    """Feed it what was read; it gives the data of every event completed by it."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """Data of the events that `received` completes, in order."""
        events: list[bytes] = []
        buffer = self._rest + received
        # A "\r" at the very end may be half of a "\r\n": it waits for the next byte.
        held = buffer[-1:] if buffer.endswith(b"\r") else b""
        lines = _LINE_END.split(buffer[: len(buffer) - len(held)])
        self._rest = lines.pop() + held
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events

    @property
    def is_clean(self) -> bool:
        """Whether no half-received event is left over."""
        return not self._rest.strip() and not self._data
