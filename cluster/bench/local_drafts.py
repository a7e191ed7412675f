"""A draft model as a drafter, in a thread of this process: no actor and no gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from actors.request_manager.draft_sessions import DraftSessions
from actors.request_manager.ports import Draft, DraftTask
from actors.ssm.speculator import SpeculatorOptions, load_speculator


class LocalDraftModel:
    """Implements `ports.Drafter`.

    A session that turns out to be unknown is sent anew with the next request.

    Args:
        name: what its drafts are counted by.
        options: which model, and how its trees grow.
    """

    is_away = False

    def __init__(self, name: str, options: SpeculatorOptions) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._speculator = self._thread.submit(load_speculator, options).result()
        self._sessions = DraftSessions()

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        """Drafts for the tasks whose sessions are ready."""
        request = self._sessions.request(tasks)
        loop = asyncio.get_running_loop()
        reply = await loop.run_in_executor(self._thread, self._speculator.draft, request)
        self._release(self._sessions.confirm(request, reply))
        return {
            one.session_id: Draft(one.tree, one.scores, one.draws)
            for one in reply.drafts
            if len(one.tree) or one.draws
        }

    def forget(self, request_id: int) -> None:
        """The request is over."""
        if self._sessions.forget(request_id):
            self._release([request_id])

    def close(self) -> None:
        """End its thread, when what runs there has ended."""
        self._thread.shutdown()

    def _release(self, session_ids: Sequence[int]) -> None:
        if session_ids:
            self._thread.submit(self._speculator.release, session_ids)
