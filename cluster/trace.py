"""A timeline of steps in Chrome's trace format, which `chrome://tracing` and Perfetto open.

A line for each rank, with what it waited for the stage before, its forward pass and its sampling;
a line for each group of requests, with the phases of its steps in the manager. Steps are told apart
by their number. Clocks of different machines are taken as they are.

Format: "Trace Event Format", the JSON array form, whose closing bracket may be missing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from actors.errors import ConfigError
from actors.messages import StepReply
from actors.request_manager.ports import StepRecord

logger = logging.getLogger(__name__)

MAX_EVENTS = 200_000
"""Then the timeline ends: it is for a look, not for days."""

_MANAGER, _RANKS = 0, 1


class StepTrace:
    """Writes the timeline of one manager.

    Args:
        path: of the file, which is begun anew.
        num_ranks, num_groups: lines that there will be.
        clock: seconds since 1970.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(
        self, path: Path, num_ranks: int, num_groups: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._num_events = 0
        try:
            self._file: TextIO = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError([f"llm.trace_file: {path}: {error.strerror}"]) from error
        self._put("[\n")
        for process, name in ((_MANAGER, "request manager"), (_RANKS, "LLM ranks")):
            self._name("process_name", process, 0, name)
        for rank in range(num_ranks):
            self._name("thread_name", _RANKS, rank, f"rank {rank}")
        for group in range(num_groups):
            self._name("thread_name", _MANAGER, group, f"group {group}")
        if self._file.closed:
            raise ConfigError([f"llm.trace_file: {path} cannot be written"])

    def rank_replied(self, rank: int, reply: StepReply) -> None:
        """A rank has done its part of a step."""
        parts = {
            "wait": reply.waited_s,
            "forward": reply.forward_s - reply.waited_s,
            "sample": reply.sample_s,
        }
        self._spans(_RANKS, rank, reply.step_id, reply.started_at, parts)

    def step_done(self, record: StepRecord) -> None:
        """The manager is just over with a step."""
        since = self._clock() - sum(record.phase_s.values())
        self._spans(_MANAGER, record.group, record.step_id, since, record.phase_s)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def _spans(
        self, process: int, thread: int, step_id: int, since: float, parts: Mapping[str, float]
    ) -> None:
        for name, seconds in parts.items():
            if seconds > 0:
                self._write(
                    {
                        "ph": "X",
                        "name": name,
                        "pid": process,
                        "tid": thread,
                        "ts": round(since * 1e6, 1),
                        "dur": round(seconds * 1e6, 1),
                        "args": {"step": step_id},
                    }
                )
            since += seconds

    def _name(self, what: str, process: int, thread: int, name: str) -> None:
        self._write(
            {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
        )

    def _write(self, event: Mapping[str, object]) -> None:
        self._num_events += 1
        if self._num_events <= MAX_EVENTS:
            self._put(json.dumps(event) + ",\n")

    def _put(self, text: str) -> None:
        if self._file.closed:
            return
        try:
            self._file.write(text)
        except OSError as error:  # as of a disk that is full
            logger.warning("the timeline of steps ends here: %s", error)
            self.close()
