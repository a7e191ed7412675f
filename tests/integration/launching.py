"""A manager launched on the cluster beside the server, and what it is asked."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from actors.request_manager.generation import (
    GenerationRequest,
    SpeculationOptions,
    StopConditions,
)
from actors.sampling import SamplingParams
from cluster.config import Config
from cluster.launch import Launched, launch


@asynccontextmanager
async def launched(config: Config) -> AsyncIterator[Launched]:
    running = await launch(config)
    try:
        yield running
    finally:
        await running.stop()


def requests_for(
    ways: Sequence[Mapping[str, Any]], prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[GenerationRequest]:
    """What the server is asked over HTTP with these fields, for the engine itself."""
    return [
        GenerationRequest(
            str(way),
            tuple(prompt),
            SamplingParams(temperature=way["temperature"], seed=way.get("seed", 0)),
            StopConditions(num_tokens),
        )
        for way, prompt in zip(ways, prompts, strict=True)
    ]


def greedy_and_sampled(
    prompts: Sequence[Sequence[int]], num_tokens: int, speculation: SpeculationOptions
) -> list[GenerationRequest]:
    """Every prompt greedily and at a temperature, for exactly so many tokens."""
    return [
        GenerationRequest(
            f"{place}-{temperature}",
            tuple(prompt),
            SamplingParams(temperature=temperature, seed=5),
            StopConditions(num_tokens, ignore_eos=True),
            speculation=speculation,
        )
        for place, prompt in enumerate(prompts)
        for temperature in (0.0, 0.8)
    ]


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
