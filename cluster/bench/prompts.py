"""Prompts to measure with: JSON lines that have `turns` (the first is used) or `prompt`, and
optionally `task`."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from actors.errors import InputError

SAMPLE = Path(__file__).with_name("prompts.jsonl")
"""A few prompts of our own, for a first look."""


@dataclass(frozen=True)
class Prompt:
    """One user turn."""

    task: str
    text: str


def load_prompts(path: Path, per_task: int, limit: int | None = None) -> list[Prompt]:
    """The first `per_task` prompts of every task, tasks taking turns; the first `limit` of those.

    Raises:
        InputError: if the file cannot be read as prompts, or has none.
    """
    by_task: defaultdict[str, list[Prompt]] = defaultdict(list)
    try:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            prompt = Prompt(
                row.get("task", "all"), row["turns"][0] if "turns" in row else row["prompt"]
            )
            if len(by_task[prompt.task]) < per_task:
                by_task[prompt.task].append(prompt)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a file of prompts: {error!r}", "--prompts") from error
    if not by_task:
        raise InputError(f"{path}: no prompts", "--prompts")
    turns = [
        prompts[i] for i in range(per_task) for prompts in by_task.values() if i < len(prompts)
    ]
    return turns[:limit]
