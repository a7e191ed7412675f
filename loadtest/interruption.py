"""Ctrl-C and SIGTERM: the first ends the run in good order, the second ends the harness at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Self

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Listens from the first `listen` to the end of its body; signals are taken at any time.

    Nothing of Python's own is written to or flushed in a handler: what it broke into may be doing
    just that.
    """

    def __init__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in STOPPING}
        self._ask: Callable[[], object] = _nothing
        self._doing = b""
        self.asked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self, doing: str, ask: Callable[[], object] | None = None) -> None:
        """From now on.

        Args:
            doing: what goes on after the first signal, for people.
            ask: called with the first signal; must be short, and safe between any two instructions.
        """
        self._doing, self._ask = doing.encode(), ask or _nothing
        for number in STOPPING:
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os.write(2, b"\nloadtest: left at once, without a report\n")
            os._exit(1)
        self.asked = True
        os.write(2, b"\nloadtest: " + self._doing + b"; Ctrl-C again to leave at once\n")
        self._ask()


def _nothing() -> None:
    """There is nobody to ask."""
