"""A draft model without weights, served in this process or in one that can be killed.

The script is a text that depends on its last tokens; the draft model knows it, keeps sessions as a
real one does, and is always right.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from spawned import spawned

from actors.drafts import (
    DraftModelDescription,
    DraftReply,
    DraftRequest,
    DraftSession,
    SessionDraft,
)
from actors.messages import NewRequest
from actors.ssm.actor import SSMActor
from actors.tree import TokenTree

PATIENCE_S = 20.0
"""Far longer than anything here takes; only a hang runs into it."""

VOCAB = 256


def script(tokens: Sequence[int], new: NewRequest | None = None) -> int:
    """The token that follows."""
    return random.Random(f"{tuple(tokens[-3:])}{len(tokens) % 7}").randrange(9)


class ScriptedDraft:
    """Implements what an `SSMActor` serves.

    Attributes:
        sessions: tokens by session.
        kept: `keep_tokens` of every session asked for, in order.
        fault: raised by the next request.
        hold: requests wait for it.
    """

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.sessions: dict[int, tuple[int, ...]] = {}
        self.kept: list[int] = []
        self.fault: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()

    def describe(self) -> DraftModelDescription:
        return DraftModelDescription("scripted", VOCAB, "hash", self.version, 0)

    def draft(self, request: DraftRequest) -> DraftReply:
        self.hold.wait(PATIENCE_S)
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
        return DraftReply(tuple(map(self._answer, request.sessions)), self.version)

    def release(self, session_ids: Sequence[int]) -> None:
        for session_id in session_ids:
            self.sessions.pop(session_id, None)

    def _answer(self, asked: DraftSession) -> SessionDraft:
        self.kept.append(asked.keep_tokens)
        held = self.sessions.pop(asked.session_id, ())
        if asked.keep_tokens > len(held):
            return SessionDraft(asked.session_id, unknown_session=True)
        tokens = [*held[: asked.keep_tokens], *asked.token_ids]
        self.sessions[asked.session_id] = tuple(tokens)
        path: list[int] = []
        while len(path) < min(asked.max_depth, asked.max_nodes, 3):
            path.append(script([*tokens, *path]))
        return SessionDraft(asked.session_id, False, TokenTree.chain(path), (0.9,) * len(path))


@contextlib.contextmanager
def serving(model: ScriptedDraft) -> Iterator[str]:
    actor = SSMActor(lambda: model)
    try:
        yield actor.start()
    finally:
        model.hold.set()
        actor.stop(0.0)


@contextlib.contextmanager
def process(version: int = 1) -> Iterator[tuple[BaseProcess, str]]:
    """A process that serves a scripted draft model."""
    with spawned(serve_until_killed, PATIENCE_S, version) as serving:
        yield serving


def serve_until_killed(parent: Connection, version: int) -> None:
    actor = SSMActor(lambda: ScriptedDraft(version))  # a server ends with the last reference to it
    parent.send(actor.start())
    threading.Event().wait()
