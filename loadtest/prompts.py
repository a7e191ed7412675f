"""Prompt sets: JSON lines from a file or from all files of a folder.

A row is a prompt if it has `turns` (a list of user turns), `messages` (a chat, up to its last user
message), or one text under `prompt`, `question` or `text`. Optionally `task`, `params` (fields of
the body for this request alone) and `max_tokens`. Other rows, and messages that are not text, are
left out, and counted. A line that is no JSON is an error: half a file is no workload.
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
    return {"role": "user", "content": _whole(text)}


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise UsageError(f"--workload {path}: no such file, or a folder without .jsonl files")
    return files


def _rows(file: Path) -> list[Any]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UsageError(f"--workload {file}: {error}") from error
    # Only "\n" ends a line: JSON may hold other separators of lines as they are.
    lines = enumerate(text.split("\n"), 1)
    return [_row(file, number, line) for number, line in lines if line.strip()]


def _row(file: Path, number: int, line: str) -> Any:  # noqa: ANN401 - whatever a line held
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--workload {file}, line {number}: not JSON: {error}") from error


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
        texts = [text for text in row["turns"] if _is_text(text)]
        return tuple((user(text),) for text in texts)
    if isinstance(row.get("messages"), list):
        messages = [_message(entry) for entry in row["messages"]]
        whole = [message for message in messages if message is not None]
        if len(whole) < len(messages):
            return ()
        while whole and whole[-1]["role"] != "user":
            whole.pop()
        return (tuple(whole),) if whole else ()
    texts = [row[name] for name in TEXT_FIELDS if _is_text(row.get(name))]
    return ((user(texts[0]),),) if texts else ()


def _message(entry: Any) -> Message | None:  # noqa: ANN401 - whatever a line held
    if not isinstance(entry, dict) or not _is_text(entry.get("role")):
        return None
    content = entry.get("content")
    if content is not None and not isinstance(content, str):
        return None
    return {"role": entry["role"], "content": _whole(content or "")}


def _is_text(value: Any) -> bool:  # noqa: ANN401 - whatever a line held
    return isinstance(value, str) and bool(value)


def _whole(text: str) -> str:
    """Without halves of surrogate pairs, which JSON can write and no tokenizer takes."""
    return text.encode(errors="replace").decode()
