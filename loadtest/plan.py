"""The plan of a run: every request in full, before the first is sent. It can be saved and replayed.

A plan is a list of sessions; a session is one request, or the turns of a conversation, sent one
after the other. Plans hold the prompts, so treat a saved one like the prompts themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.errors import UsageError

Message = dict[str, str]

SCHEDULE_VERSION = 1


@dataclass(frozen=True)
class PlannedRequest:
    """One request.

    Attributes:
        index: its number in the plan.
        turn: 0, or its place in a conversation.
        messages: what this turn adds; earlier turns and their answers go before it.
        params: fields of the body: `max_tokens`, sampling parameters.
        think_s: pause after the answer to the turn before.
        cancel_after_tokens: hang up once so many tokens have come; None to hear it out.
    """

    index: int
    turn: int
    messages: tuple[Message, ...]
    params: dict[str, Any] = field(default_factory=dict)
    think_s: float = 0.0
    cancel_after_tokens: int | None = None


@dataclass(frozen=True)
class Session:
    """A request, or a conversation: due at `at_s` from the start (None in a closed loop)."""

    at_s: float | None
    requests: tuple[PlannedRequest, ...]


@dataclass(frozen=True)
class Plan:
    """Sessions in order of time, and notes on how they were made, for the report."""

    sessions: tuple[Session, ...]
    notes: tuple[str, ...] = ()

    @property
    def num_requests(self) -> int:
        return sum(len(session.requests) for session in self.sessions)

    @property
    def is_open(self) -> bool:
        """Whether there is a schedule."""
        return all(session.at_s is not None for session in self.sessions)

    @property
    def span_s(self) -> float:
        """When the last session is due; 0 in a closed loop."""
        return max((session.at_s or 0.0 for session in self.sessions), default=0.0)


def save_plan(plan: Plan, path: Path) -> None:
    """One session a line, after a line with the notes and the number of sessions."""
    head = {
        "schedule_version": SCHEDULE_VERSION,
        "num_sessions": len(plan.sessions),
        "notes": plan.notes,
    }
    with path.open("w") as file:
        for line in (head, *(asdict(session) for session in plan.sessions)):
            file.write(json.dumps(line) + "\n")


def load_plan(path: Path) -> Plan:
    """A plan as it was saved.

    Raises:
        UsageError: if the file is no saved plan.
    """
    try:
        head, *lines = [json.loads(line) for line in path.read_text().splitlines()] or [{}]
        _check_head(head, len(lines))
        sessions = tuple(_session(line) for line in lines)
        _check_times([session.at_s for session in sessions])
        return Plan(sessions, (*head["notes"], f"replayed from {path.name}"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--replay {path}: not a saved schedule: {error}") from error


def _check_head(head: dict[str, Any], num_sessions: int) -> None:
    version = head.get("schedule_version")
    if version != SCHEDULE_VERSION:
        raise ValueError(f"its version is {version}, not {SCHEDULE_VERSION}")
    if not num_sessions or head["num_sessions"] != num_sessions:
        raise ValueError(f"{num_sessions} of {head['num_sessions']} sessions are there")


def _check_times(times: Sequence[float | None]) -> None:
    known = [at_s for at_s in times if at_s is not None]
    if len(known) not in (0, len(times)) or known != sorted(known) or min(known, default=0) < 0:
        raise ValueError("its times do not rise from 0")


def blocks(sessions: Sequence[Session], num_blocks: int) -> Iterable[tuple[Session, ...]]:
    """The schedule cut into stretches of equal numbers of sessions, each starting at zero."""
    size = -(-len(sessions) // max(1, num_blocks))
    for start in range(0, len(sessions), max(1, size)):
        part = sessions[start : start + size]
        first_s = part[0].at_s or 0.0
        yield tuple(
            Session(None if session.at_s is None else session.at_s - first_s, session.requests)
            for session in part
        )


def _session(line: dict[str, Any]) -> Session:
    return Session(line["at_s"], tuple(_request(row) for row in line["requests"]))


def _request(row: dict[str, Any]) -> PlannedRequest:
    messages = tuple({str(key): str(text) for key, text in one.items()} for one in row["messages"])
    return PlannedRequest(**{**row, "messages": messages, "params": dict(row["params"])})
