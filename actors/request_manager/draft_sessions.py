"""What a draft model is known to hold of each request, and so what it has to be sent.

Tokens are only ever added to a request, so a session is brought up to date with those that the
draft model has not confirmed. What it was sent without confirming (a late answer) is sent again; it
compares and computes nothing twice. A request may be over while an answer for it is on its way:
then the draft model has a session that nobody will ask for again. Pure bookkeeping.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.drafts import DraftReply, DraftRequest, DraftSession
from actors.request_manager.ports import DraftTask

MAX_NEW_TOKENS = 1_000_000
"""Of one request: a message has a limit of its own."""


class DraftSessions:
    """The sessions of one draft model."""

    def __init__(self) -> None:
        self._confirmed: dict[int, int] = {}  # tokens, of every session that was ever asked for

    def __contains__(self, request_id: int) -> bool:
        """True if the draft model was asked about a request that is not over."""
        return request_id in self._confirmed

    def request(self, tasks: Sequence[DraftTask]) -> DraftRequest:
        """Brings the tasks' sessions up to date and asks for their trees.

        What does not fit in, as after a draft model's restart, is left for the requests to come.
        """
        sessions = []
        room = MAX_NEW_TOKENS
        for task in tasks:
            num_new = len(task.token_ids) - self._confirmed.get(task.request_id, 0)
            if num_new <= room:
                room -= num_new
                sessions.append(self._session(task))
        tokens_per_s = max((task.tokens_per_s for task in tasks), default=0.0)
        return DraftRequest(tuple(sessions), tokens_per_s)

    def confirm(self, request: DraftRequest, reply: DraftReply) -> list[int]:
        """Note what the draft model holds now that it has answered `request`.

        Returns:
            Requests that are over by now: their sessions have to be released.
        """
        unknown = {draft.session_id for draft in reply.drafts if draft.unknown_session}
        for session in request.sessions:
            if session.session_id in self._confirmed:
                held = session.keep_tokens + len(session.token_ids)
                is_known = session.session_id not in unknown
                self._confirmed[session.session_id] = held if is_known else 0
        ids = (session.session_id for session in request.sessions)
        return [session_id for session_id in ids if session_id not in self._confirmed]

    def forget(self, request_id: int) -> bool:
        """The request is over; True if the draft model may hold a session for it."""
        return self._confirmed.pop(request_id, None) is not None

    def reset(self) -> None:
        """The draft model holds nothing any more."""
        self._confirmed.clear()

    def _session(self, task: DraftTask) -> DraftSession:
        keep = self._confirmed.setdefault(task.request_id, 0)
        return DraftSession(
            session_id=task.request_id,
            keep_tokens=keep,
            token_ids=tuple(task.token_ids[keep:]),
            prompt_len=task.prompt_len,
            sampling=task.sampling,
            max_nodes=task.max_nodes,
            max_depth=task.max_depth,
            banned_early=task.banned_early,
            least_probability=task.least_probability,
            verification=task.verification,
        )
