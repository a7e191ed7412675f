"""A rank that has no model, served in this process or in one that can be killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from spawned import spawned

from actors.errors import StaleEpoch
from actors.llm.actor import LLMActor
from actors.messages import LLMDescription, Row, RowResult, StepMessage, StepReply
from actors.request_manager.clients import LLMClient
from actors.tls import TlsFiles
from actors.tree import TokenTree

PATIENCE_S = 20.0
"""Far longer than anything here takes; only a hang runs into it."""

HANG_GROUP, BREAK_GROUP = 7, 8
"""Steps of these groups make the echo rank wait for `resume`, or fail."""


class EchoRank:
    """Draws each node's own token; keeps what it ran, and on which thread."""

    def __init__(self, name: str = "echo") -> None:
        self.name = name
        self.epoch = 0
        self.steps: list[tuple[int, int]] = []
        self.threads: set[int] = set()
        self.hanging = threading.Event()
        self.resume = threading.Event()

    def describe(self) -> LLMDescription:
        self.threads.add(threading.get_ident())
        return LLMDescription(
            self.name, 300, 2048, 64, 16, 1000, "hash", "float32", "cpu", "fused", True
        )

    def step(self, message: StepMessage) -> StepReply:
        self.threads.add(threading.get_ident())
        if message.epoch < self.epoch:
            raise StaleEpoch(f"epoch {message.epoch} is over, {self.epoch} runs")
        self.epoch = message.epoch
        self.steps.append((message.epoch, message.step_id))
        if message.group == HANG_GROUP:
            self.hanging.set()
            self.resume.wait(PATIENCE_S)
        if message.group == BREAK_GROUP:
            raise ZeroDivisionError("no such thing")
        results = (
            RowResult(row.request_id, row.tree.token_ids[row.first_output :])
            for row in message.rows
        )
        return StepReply(message.epoch, message.step_id, tuple(results))


@contextlib.contextmanager
def serving(rank: EchoRank, tls: TlsFiles | None = None) -> Iterator[str]:
    server = LLMActor(lambda: rank, tls=tls)
    try:
        yield server.start()
    finally:
        rank.resume.set()
        server.stop(0.0)


@contextlib.asynccontextmanager
async def connected(
    *addresses: str,
    step_timeout_s: float = PATIENCE_S,
    respawned: tuple[str, ...] = (),
    connect_timeout_s: float = PATIENCE_S,
    tls: TlsFiles | None = None,
) -> AsyncIterator[LLMClient]:
    async def respawn() -> tuple[str, ...]:
        return respawned or addresses

    client = LLMClient(addresses, respawn, step_timeout_s, connect_timeout_s, tls=tls)
    try:
        yield client
    finally:
        await client.close()


def step(step_id: int, epoch: int = 1, group: int = 0, token: int = 5) -> StepMessage:
    rows = (Row(1, 0, TokenTree.chain([token, token + 1])),)
    return StepMessage(epoch, step_id, group, rows=rows)


@contextlib.contextmanager
def process() -> Iterator[tuple[BaseProcess, str]]:
    """A process that serves an echo rank."""
    with spawned(serve_until_killed, PATIENCE_S) as serving:
        yield serving


def serve_until_killed(parent: Connection) -> None:
    actor = LLMActor(EchoRank)  # a server ends with the last reference to it
    parent.send(actor.start())
    threading.Event().wait()
