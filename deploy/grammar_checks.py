"""Checks grammars in processes apart, which one that takes too much brings down alone.

There are few, so that hostile grammars hold up each other and whoever else asks for one, but no
plain request. A process that has ended is started again for the next grammar.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from actors.errors import InputError, UnavailableError
from actors.grammar import TOO_MUCH_WORK
from deploy.structured_output import Wanted, source_of

logger = logging.getLogger(__name__)

NUM_PROCESSES = 2
NUM_TRIES = 2
ANSWER_S = 60.0
"""A process that says nothing for so long hangs, for whatever reason."""
TOO_MUCH = frozenset({-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGSEGV})
"""How a process ends that takes too much time, memory or stack."""

GrammarCheck = Callable[[str, Wanted], Coroutine[Any, Any, str]]
"""From a field's name and what it wants to the source of a grammar; raises InputError."""


async def check_here(param: str, wanted: Wanted) -> str:
    """Without a process apart, on a thread: for whoever trusts who asks."""
    return await asyncio.to_thread(source_of, param, wanted)


class GrammarChecks:
    """A `GrammarCheck` in processes apart."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, "grammars")
        self._own = threading.local()  # each thread has a process
        self._processes: list[subprocess.Popen[bytes]] = []

    async def __call__(self, param: str, wanted: Wanted) -> str:
        """The source of a checked grammar.

        Raises:
            InputError: naming the field, if it is wrong or takes too much.
            UnavailableError: the processes end for another reason.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._check, param, wanted)

    def close(self) -> None:
        """End the processes, when each has answered what it was asked."""
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.terminate()
            process.wait()

    def _check(self, param: str, wanted: Wanted) -> str:
        line = json.dumps({"param": param, "wanted": wanted}).encode() + b"\n"
        for _ in range(NUM_TRIES):
            process = self._process()
            if answer := _ask(process, line):
                found: dict[str, str] = json.loads(answer)
                if "source" in found:
                    return found["source"]
                raise InputError(found["message"], found["param"], found["code"])
            if process.wait() in TOO_MUCH:
                raise InputError(f"{param}: {TOO_MUCH_WORK}", param, "invalid_grammar")
            logger.warning("the check of a grammar ended with status %d", process.returncode)
        raise UnavailableError("grammars cannot be checked now")

    def _process(self) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] | None = getattr(self._own, "process", None)
        if process is None or process.poll() is not None:
            process = self._own.process = _start()
            self._processes = [one for one in self._processes if one.poll() is None] + [process]
        return process


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "deploy.grammar_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
    )


def _ask(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """The process's answer; empty if it ended instead, or was ended since it hung."""
    if process.stdin is None or process.stdout is None:
        return b""
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except OSError:
        return b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(ANSWER_S):
            process.terminate()
    return process.stdout.readline()
