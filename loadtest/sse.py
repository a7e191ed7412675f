"""Server-sent events out of a stream of bytes, as they come (WHATWG HTML, 9.2.6).

Only the `data` field matters to this API; comments and other fields are skipped.
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

MOST_BYTES = 16 << 20
"""Of one event: more is no answer of a language model, and would only fill the memory."""


class EventTooLongError(ValueError):
    """An event does not end."""


class EventSplitter:
    """Feed it what was read; it gives the data of every event completed by it."""

    def __init__(self) -> None:
        self._started = False
        self._after_cr = False
        self._rest: list[bytes] = []
        self._num_held = 0
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """Data of the events that `received` completes, in order.

        Raises:
            EventTooLongError: if an event grows beyond `MOST_BYTES`.
        """
        if not received:
            return []
        if not self._started:
            received, self._started = received.removeprefix(_BYTE_ORDER_MARK), True
        # Half of a "\r\n" that was cut in two: its line has ended already.
        begin = int(self._after_cr and received.startswith(b"\n"))
        self._after_cr = received.endswith(b"\r")
        first, *others = _LINE_END.split(received[begin:])
        self._hold(first)
        if not others:
            return []
        lines = [b"".join(self._rest), *others]
        self._rest, self._num_held = [], sum(map(len, self._data))
        self._hold(lines.pop())
        return [event for line in lines if (event := self._end_of(line)) is not None]

    def _hold(self, part: bytes) -> None:
        """Keep the begin of a line; joined only when it ends, so that a long one is not slow."""
        self._rest.append(part)
        self._num_held += len(part)
        if self._num_held > MOST_BYTES:
            raise EventTooLongError(f"an event of more than {MOST_BYTES:,} bytes")

    def _end_of(self, line: bytes) -> bytes | None:
        """Take a whole line; the event's data if it ends one."""
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        if line or not self._data:
            return None
        event, self._data = b"\n".join(self._data), []
        return event
