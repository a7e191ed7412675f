"""Progress of long work: a bar on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

_BAR_CELLS = 30
_REDRAW_S = 0.2
_LINE_S = 15.0


class ProgressLine:
    """Shows how far one piece of work is.

    Args:
        title: of the work.
        out: where to; standard error by default.
        clock: seconds.
    """

    def __init__(
        self,
        title: str,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._out = sys.stderr if out is None else out
        self._clock = clock
        self._is_terminal = self._out.isatty()
        self._shown_s: float | None = None

    def show(self, share: float, note: str = "") -> None:
        """Tell the share done, 0 to 1; the last call has 1 and is always shown."""
        now_s = self._clock()
        pause_s = _REDRAW_S if self._is_terminal else _LINE_S
        if share < 1 and self._shown_s is not None and now_s - self._shown_s < pause_s:
            return
        self._shown_s = now_s
        text = f"{self._title} {100 * share:3.0f} % {note}".rstrip()
        if not self._is_terminal:
            print(text, file=self._out, flush=True)
            return
        cells = round(share * _BAR_CELLS)
        bar = "█" * cells + "·" * (_BAR_CELLS - cells)
        end = "\n" if share >= 1 else ""
        print(f"\r\x1b[K{bar} {text}", end=end, file=self._out, flush=True)
