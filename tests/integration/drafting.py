"""A drafter over a connection to a draft model, and what tests ask of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from scripted_draft import PATIENCE_S, script

from actors.errors import PeerUnavailable
from actors.request_manager.ports import Draft, DraftTask
from actors.request_manager.ssm_client import SSMDrafter
from actors.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


async def nobody() -> str:
    raise PeerUnavailable("no machine left")


@contextlib.asynccontextmanager
async def drafting(
    address: str, respawn: Callable[[], Awaitable[str]] = nobody, deadline_s: float = PATIENCE_S
) -> AsyncIterator[SSMDrafter]:
    drafter = SSMDrafter(address, respawn, deadline_s)
    try:
        yield drafter
    finally:
        await drafter.close()


def task(request_id: int, *tokens: int) -> DraftTask:
    return DraftTask(request_id, tokens, 1, GREEDY, 8, 4)


def following(*tokens: int) -> tuple[int, ...]:
    path: list[int] = []
    for _ in range(3):
        path.append(script([*tokens, *path]))
    return tuple(path)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


async def answered(drafter: SSMDrafter, asked: DraftTask) -> Mapping[int, Draft]:
    """The drafts for a task, once there are any."""
    async with asyncio.timeout(PATIENCE_S):
        while not (drafts := await drafter.draft([asked])):
            await asyncio.sleep(0.01)
    return drafts
