"""The ranks of a split LLM, each in a process of its own, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from actors.llm.parallel.grid import Grid
from actors.llm.rank import RankOptions
from actors.meeting import Meeting
from actors.messages import StepReply
from actors.request_manager.clients import LLMClient

PATIENCE_S = 120.0
"""Far longer than anything here takes; only a hang runs into it."""

PRELOADED = ["actors.llm.parallel.rank_loading", "actors.llm.actor"]


class SplitRanks:
    """All ranks of one LLM, which can be replaced together.

    Args:
        options: of each.
        shards, stages: into how many the LLM is split.
    """

    def __init__(self, options: RankOptions, shards: int, stages: int) -> None:
        self._options = options
        self._grids = [Grid(shards, stages, rank) for rank in range(shards * stages)]
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        self.num_starts = 0

    async def start(self) -> Sequence[str]:
        """Kill those that run, start others; returns their addresses."""
        self.kill()
        self.num_starts += 1
        return await asyncio.to_thread(self._start)

    def kill(self) -> None:
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()
        self.processes, self._pipes = [], []

    def _start(self) -> list[str]:
        for grid in self._grids:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(theirs, self._options, grid), daemon=True
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(ours)
        place = _received(self._pipes[0])
        for pipe in self._pipes[1:]:
            pipe.send(place)
        return [_received(pipe) for pipe in self._pipes]


@contextlib.asynccontextmanager
async def client_of(
    ranks: SplitRanks,
    step_timeout_s: float = PATIENCE_S,
    on_reply: Callable[[int, StepReply], None] | None = None,
) -> AsyncIterator[LLMClient]:
    """A client of ranks that are started for it, and started again when it asks."""
    try:
        addresses = await ranks.start()
        client = LLMClient(addresses, ranks.start, step_timeout_s, PATIENCE_S, on_reply)
        yield client
        await client.close()
    finally:
        ranks.kill()


def _serve(parent: Connection, options: RankOptions, grid: Grid) -> None:
    from actors.llm.actor import LLMActor
    from actors.llm.parallel.rank_loading import load_rank_of_several

    if grid.rank == 0:
        meeting = Meeting.open("127.0.0.1")
        parent.send(meeting.address)
    else:
        meeting = Meeting.at(parent.recv())
    actor = LLMActor(lambda: load_rank_of_several(options, grid, meeting))
    parent.send(actor.start())
    threading.Event().wait()


def _received(pipe: Connection) -> str:
    if not pipe.poll(PATIENCE_S):
        raise TimeoutError("a rank does not start")
    return str(pipe.recv())
