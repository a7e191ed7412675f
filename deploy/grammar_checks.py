"""Checks grammars in processes apart, which one that takes too much brings down alone.

There are few, and few wait for them, so that hostile grammars hold up each other and whoever else
asks for one, but no plain request; `deploy.grammar_turns` says whose is next. For a process that
has ended another is started. What brings one down is tried once more in a fresh one: what others
left behind in it may have been at fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from actors.errors import InputError, OverloadedError, UnavailableError
from actors.grammar import TOO_MUCH_WORK
from deploy.grammar_turns import Turns
from deploy.structured_output import Wanted, source_of

logger = logging.getLogger(__name__)

NUM_PROCESSES = 2
NUM_TRIES = 2
MAX_INSIDE = 32
"""Grammars that are checked or wait for it."""
RETRY_AFTER_S = 2.0
ANSWER_S = 60.0
"""A process that says nothing for so long hangs, for whatever reason."""
TOO_MUCH = frozenset({-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGSEGV})
"""How a process ends that takes too much time, memory or stack."""

GrammarCheck = Callable[[str, Wanted, int], Coroutine[Any, Any, str]]
"""From a field's name, what it wants, and the number of who asks to the source of a grammar; raises
InputError."""


async def check_here(param: str, wanted: Wanted, _asker: int) -> str:
    """Without a process apart, on a thread: for whoever trusts who asks."""
    return await asyncio.to_thread(source_of, param, wanted)


class _Process:
    """A process that checks one grammar after the other."""

    def __init__(self) -> None:
        self.num_answers = 0
        path = os.pathsep.join(sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deploy.grammar_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        )

    def ask(self, line: bytes) -> bytes:
        """The answer; empty if the process has ended instead, as one that hangs is made to."""
        hanging = threading.Timer(ANSWER_S, self.kill)
        hanging.start()
        try:
            answer = self._exchange(line)
        finally:
            hanging.cancel()
        self.num_answers += 1
        return answer if answer.endswith(b"\n") else b""

    def _exchange(self, line: bytes) -> bytes:
        if self._process.stdin is None or self._process.stdout is None:
            return b""
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError:
            return b""
        return self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        """How it ended."""
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return status


class GrammarChecks:
    """A `GrammarCheck` in processes apart."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, "grammars")
        self._turns = Turns(NUM_PROCESSES)
        self._num_inside = 0
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._is_closed = False

    async def __call__(self, param: str, wanted: Wanted, asker: int) -> str:
        """The source of a checked grammar.

        Raises:
            InputError: naming the field, if it is wrong or takes too much.
            OverloadedError: too many wait already.
            UnavailableError: the processes end for another reason.
        """
        if self._num_inside >= MAX_INSIDE:
            raise OverloadedError("too many grammars wait to be checked", RETRY_AFTER_S)
        self._num_inside += 1
        try:
            return await self._in_turn(param, wanted, asker)
        finally:
            self._num_inside -= 1

    async def _in_turn(self, param: str, wanted: Wanted, asker: int) -> str:
        line = json.dumps({"param": param, "wanted": wanted}).encode() + b"\n"
        await self._turns.take(asker, len(line))

        def done(work: asyncio.Future[str]) -> None:
            self._turns.give_back(asker)
            if not work.cancelled():
                work.exception()  # whoever asked may have gone

        try:
            work = asyncio.get_running_loop().run_in_executor(
                self._threads, self._check, param, line
            )
        except RuntimeError as error:  # closed meanwhile
            self._turns.give_back(asker)
            raise UnavailableError("the server is shutting down") from error
        work.add_done_callback(done)
        return await asyncio.shield(work)  # the place is free when the process is

    def close(self) -> None:
        """End the processes at once; what they were asked fails."""
        with self._lock:
            self._is_closed = True
            for process in self._all:
                process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._idle:
            process.wait()

    def _check(self, param: str, line: bytes) -> str:
        for _ in range(NUM_TRIES):
            process = self._take()
            is_fresh = process.num_answers == 0
            if answer := process.ask(line):
                with self._lock:
                    self._idle.append(process)
                return _source(json.loads(answer))
            status = process.wait()
            with self._lock:
                self._all.discard(process)
            if is_fresh and status in TOO_MUCH:  # else what came before may be at fault
                raise InputError(f"{param}: {TOO_MUCH_WORK}", param, "invalid_grammar")
            logger.info("the check of a grammar ended with status %d", status)
        raise UnavailableError("grammars cannot be checked now")

    def _take(self) -> _Process:
        with self._lock:
            if self._is_closed:
                raise UnavailableError("the server is shutting down")
            if self._idle:
                return self._idle.pop()
            process = _Process()
            self._all.add(process)
            return process


def _source(found: Mapping[str, str]) -> str:
    if "source" in found:
        return found["source"]
    raise InputError(found["message"], found["param"], found["code"])
