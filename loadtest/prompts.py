"""Prompt sets: JSON lines from a file or from all files of a folder.

A row is a prompt if it has `turns` (a list of user turns), `messages` (a chat, up to its last user
message), or one text under `prompt`, `question` or `text`. Optionally `task`, `params` (fields of
the body for this request alone) and `max_tokens`. Other rows are left out, and counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.errors import UsageError
from loadtest.plan import Message

TEXT_FIELDS = ("prompt", "question", "text")

Turn = tuple[Message, ...]


@dataclass(frozen=True)
class Prompt:
    """One conversation to be had: what each turn adds, and fields of the body."""

    turns: tuple[Turn, ...]
    task: str = ""
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What the user says first."""
        return self.turns[0][-1]["content"]


@dataclass(frozen=True)
class PromptSet:
    """Distinct prompts in the order of their files."""

    prompts: tuple[Prompt, ...]
    num_left_out: int


def read_prompts(paths: Sequence[Path]) -> PromptSet:
    """All prompts of files and folders.

    Raises:
        UsageError: if a path cannot be read as JSON lines, or holds no prompt.
    """
    rows = [row for path in paths for file in _files(path) for row in _rows(file)]
    found = {
        json.dumps(prompt.turns): prompt for row in rows if (prompt := _prompt(row)) is not None
    }
    if not found:
        raise UsageError(f"--workload {', '.join(map(str, paths))}: no prompt in it")
    return PromptSet(tuple(found.values()), len(rows) - len(found))


def user(text: str) -> Message:
    """A user's message."""
    return {"role": "user", "content": text}


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise UsageError(f"--workload {path}: no such file, or a folder without .jsonl files")
    return files


def _rows(file: Path) -> list[Any]:
    try:
        return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UsageError(f"--workload {file}: not JSON lines: {error}") from error


def _prompt(row: Any) -> Prompt | None:  # noqa: ANN401 - whatever a line held
    if not isinstance(row, dict):
        return None
    turns = _turns(row)
    if not turns:
        return None
    params = dict(row["params"]) if isinstance(row.get("params"), dict) else {}
    if isinstance(row.get("max_tokens"), int):
        params["max_tokens"] = row["max_tokens"]
    return Prompt(turns, str(row.get("task", "")), params)


def _turns(row: dict[str, Any]) -> tuple[Turn, ...]:
    if isinstance(row.get("turns"), list):
        texts = [text for text in row["turns"] if isinstance(text, str) and text]
        return tuple((user(text),) for text in texts)
    if isinstance(row.get("messages"), list):
        messages = [_message(entry) for entry in row["messages"]]
        while messages and messages[-1]["role"] != "user":
            messages.pop()
        return (tuple(messages),) if messages else ()
    texts = [row[name] for name in TEXT_FIELDS if isinstance(row.get(name), str) and row[name]]
    return ((user(texts[0]),),) if texts else ()


def _message(entry: Any) -> Message:  # noqa: ANN401 - whatever a line held
    fields = entry if isinstance(entry, dict) else {}
    return {"role": str(fields.get("role", "")), "content": str(fields.get("content") or "")}
