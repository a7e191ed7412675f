"""The one thread that touches a model: torch's OpenMP pool belongs to the thread that calls it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from actors.errors import PeerUnavailable

Result = TypeVar("Result")


class ModelThread:
    """Runs work one piece at a time, in order of arrival.

    Args:
        name: shown by debuggers, and in the error of who comes too late.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def run(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the thread and wait for it.

        Raises:
            PeerUnavailable: the thread is closed. Else whatever `work` raises.
        """
        try:
            running = self._thread.submit(work)
        except RuntimeError as error:
            raise PeerUnavailable(f"{self._name} is shutting down") from error
        return running.result()

    def close(self) -> None:
        """Drop what waits; what runs is left to finish."""
        self._thread.shutdown(wait=False, cancel_futures=True)
