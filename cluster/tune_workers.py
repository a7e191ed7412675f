"""Trains one draft model in Ray actors: one for each GPU, or several on the cores of this machine.

A worker that dies takes its group with it, as every step needs all of them; the group is started
again and goes on from the last checkpoint.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from actors.errors import InputError, PeerUnavailable
from actors.rpc import LOOPBACK
from actors.ssm.boost_tuning.lesson import Lesson
from actors.ssm.boost_tuning.recipe import Progress
from actors.ssm.boost_tuning.worker import TrainingWorker
from cluster import ray_actors, ray_api

logger = logging.getLogger(__name__)

WORKER = "TrainingWorker"
"""Process lists show it."""
SHOW_S = 2.0
DEATH_S = 5.0
"""How long after a failed worker the others' own failures are waited for: one of them may be the
reason."""
NUM_TRIES = 3
"""Of a group that dies before it has come any further."""


@dataclass(frozen=True)
class Workers:
    """Who trains.

    Attributes:
        number: of processes; None is one for each GPU, or one without a GPU.
        device: as in `llm.device`: auto, cpu or cuda.
        num_threads: of each on a CPU; None shares the cores out.
    """

    number: int | None
    device: str
    num_threads: int | None


def train(lesson: Lesson, workers: Workers, show: Callable[[Progress], None]) -> None:
    """Train to the end, on a Ray cluster of its own.

    Args:
        show: told every few seconds, and at the end.

    Raises:
        PeerError: Ray does not come up, or the workers die again and again.
        InputError, ModelError: the lesson cannot be used.
    """
    ray_api.start_cluster(workers.number or 1)
    try:
        asyncio.run(_train(lesson, workers, show))
    finally:
        ray_api.stop_cluster()


async def _train(lesson: Lesson, workers: Workers, show: Callable[[Progress], None]) -> None:
    num_lost, reached = 0, lesson.saved.progress.step
    while True:
        group = _Group(lesson, workers)
        try:
            await group.start()
            progress = Progress()
            while not progress.is_done:
                progress = await group.advance()
                show(progress)
            return
        except PeerUnavailable as error:
            step = lesson.saved.progress.step
            num_lost = 1 if step > reached else num_lost + 1
            reached = step
            if num_lost == NUM_TRIES:
                raise
            logger.warning("%s; going on from step %d", error, step)
        finally:
            group.kill()


class _Group:
    """The workers of one try."""

    def __init__(self, lesson: Lesson, workers: Workers) -> None:
        num_gpus = 0 if workers.device == "cpu" else ray_api.num_gpus()
        number = workers.number or num_gpus or 1
        on_gpu = workers.device == "cuda" or num_gpus >= number
        if on_gpu and num_gpus < number:
            raise InputError(f"{number} workers on GPUs, of which there are {num_gpus}")
        num_threads = workers.num_threads or max(1, (os.cpu_count() or 1) // number)
        self._processes = [
            ray_actors.ActorProcess(
                WORKER,
                functools.partial(
                    TrainingWorker,
                    lesson,
                    rank,
                    number,
                    torch.device("cuda" if on_gpu else "cpu"),
                    num_threads,
                ),
                {"GPU": 1} if on_gpu else {"CPU": 1},
            )
            for rank in range(number)
        ]

    async def start(self) -> None:
        place = await self._processes[0].open_meeting(LOOPBACK)
        await _all([process.make(place) for process in self._processes])

    async def advance(self) -> Progress:
        """Train for a while; returns where that led."""
        calls = [process.call("advance", SHOW_S) for process in self._processes]
        first, *_ = await _all(calls)
        return cast("Progress", first)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


async def _all(calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The calls' results, or the error of one that failed: a death before what it did to others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    _, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    if running:
        await asyncio.wait(running, timeout=DEATH_S)
    errors = [error for task in tasks if task.done() and (error := task.exception())]
    errors.sort(key=lambda error: not isinstance(error, PeerUnavailable))
    if errors:
        for task in tasks:
            task.cancel()
        raise errors[0]
    return [task.result() for task in tasks]
