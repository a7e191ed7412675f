"""Prompt sets in folders: JSON lines in any of four shapes, as conversations to be answered.

A row has `turns` (the first is asked), `prompt`, `messages`, or `transcript` (plain text, every
message behind its role). A recorded conversation is asked again where an assistant answered, at the
latest place that is short enough; `system_prompt.txt` in its folder comes before it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.errors import InputError

SETS = ("spec_bench", "humaneval", "code_edit_*", "text2sql", "agentic_*")
SYSTEM_FILE = "system_prompt.txt"
ROLE = re.compile(r"^(user|assistant|tool): ", re.MULTILINE)

Messages = Sequence[Mapping[str, str]]
Encode = Callable[[Messages], tuple[int, ...]]
"""From a conversation to the tokens of a prompt for what comes next."""


@dataclass(frozen=True)
class SetPrompt:
    """A prompt of a set.

    Attributes:
        task: within the set; empty if it is not divided.
    """

    data_set: str
    task: str
    token_ids: tuple[int, ...]

    @property
    def label(self) -> str:
        """Set and task."""
        return f"{self.data_set}/{self.task}" if self.task else self.data_set


def load_sets(
    folder: Path, patterns: Iterable[str], per_task: int, max_tokens: int, encode: Encode
) -> list[SetPrompt]:
    """The first `per_task` prompts of every task of every set, tasks taking turns.

    Args:
        folder: of the sets' folders.
        patterns: of their names.
        max_tokens: of a prompt; rows that are longer are passed over.

    Raises:
        InputError: a pattern has no folder, or a file is not as described above.
    """
    by_task: defaultdict[str, list[SetPrompt]] = defaultdict(list)
    for pattern in patterns:
        sets = sorted(path for path in folder.glob(pattern) if path.is_dir())
        if not sets:
            raise InputError(f"{folder} has no prompt set {pattern!r}", "--sets")
        for data_set in sets:
            for prompt in _prompts(data_set, per_task, max_tokens, encode):
                by_task[prompt.label].append(prompt)
    return [
        prompts[place]
        for place in range(per_task)
        for prompts in by_task.values()
        if place < len(prompts)
    ]


def _prompts(data_set: Path, per_task: int, max_tokens: int, encode: Encode) -> Iterator[SetPrompt]:
    files = sorted(data_set.glob("*.jsonl"))
    if not files:
        raise InputError(f"{data_set} has no JSON lines", "--data")
    system = data_set / SYSTEM_FILE
    before = [_message("system", system.read_text())] if system.is_file() else []
    for path in files:
        counts: defaultdict[str, int] = defaultdict(int)
        for row in _rows(path):
            task = row.get("task") or (path.stem if len(files) > 1 else "")
            if counts[task] == per_task:
                continue
            candidates = (encode([*before, *one]) for one in conversations(row, path))
            fitting = [tokens for tokens in candidates if len(tokens) <= max_tokens]
            if fitting:
                counts[task] += 1
                yield SetPrompt(data_set.name, task, fitting[-1])


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}: not JSON lines: {error}", "--data") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}: a line is not a JSON object", "--data")
            yield row


def conversations(row: Mapping[str, Any], path: Path) -> list[Messages]:
    """What may be asked of a row, the shortest first. Raises InputError."""
    try:
        if "turns" in row:
            return [[_message("user", row["turns"][0])]]
        if "prompt" in row:
            return [[_message("user", row["prompt"])]]
        if "messages" in row:
            messages = [_message(one["role"], _content(one)) for one in row["messages"]]
        else:
            _, *pieces = ROLE.split(row["transcript"])
            messages = list(map(_message, pieces[::2], map(str.strip, pieces[1::2])))
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"{path}: not a file of prompts: {error!r}", "--data") from error
    answered = [place for place, one in enumerate(messages) if one["role"] == "assistant" and place]
    return [messages[:place] for place in answered] or [messages]


def _content(message: Mapping[str, Any]) -> str:
    """Its text; of a message that only calls tools, the calls."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message.get("content") or json.dumps(calls)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
