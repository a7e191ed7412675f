"""A manager launched on the cluster beside the server, and what it is asked."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from actors.request_manager.generation import GenerationRequest
from cluster.config import Config
from cluster.launch import Launched, launch


@asynccontextmanager
async def launched(config: Config) -> AsyncIterator[Launched]:
    running = await launch(config)
    try:
        yield running
    finally:
        await running.stop()


async def collect(
    running: Launched, request: GenerationRequest, kill: Iterable[int] = ()
) -> list[int]:
    """The whole output; processes are killed after its first tokens."""
    tokens: list[int] = []
    victims = list(kill)
    async for event in running.engine.generate(request):
        tokens += event.token_ids
        while victims:
            os.kill(victims.pop(), signal.SIGKILL)
    return tokens
