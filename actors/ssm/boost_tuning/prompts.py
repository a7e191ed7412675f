"""Prompts that the LLM answers for its drafts to learn from.

Two origins: our own, composed from the templates and word lists beside this module (free of
anybody's terms), and files with one JSON object a line: `{"messages": [...]}`, whose first user
message is taken; `{"turns": [...]}`, whose first is taken; or `{"text": ...}`, a passage that our
templates turn into tasks (summaries, questions about it, rewriting). The same seed composes the
same prompts. One turn only: conversations are not covered.

Does not keep evaluation prompts out: whoever names a file answers for it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.errors import InputError

_DATA = Path(__file__).with_name("own_prompts.json")
_SLOT = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"\b[A-Z][a-z]{3,}(?: [A-Z][a-z]+)*\b")
_PASSAGE_CHARS = (500, 3800)


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        source: where it comes from: a file's stem, or `own`.
        task: kind of template that made it; `chat` for messages taken as they are.
        text: the user's message.
    """

    source: str
    task: str
    text: str


def own_prompts(count: int, seed: int) -> list[Prompt]:
    """Different prompts composed of our own words, tasks in equal shares.

    Raises:
        InputError: the templates do not yield so many.
    """
    data = _data()
    rng = random.Random(seed)
    tasks = list(data["templates"])
    made: dict[str, Prompt] = {}
    for attempt in range(20 * count):
        if len(made) == count:
            break
        task = tasks[attempt % len(tasks)]
        text = _fill(rng.choice(data["templates"][task]), data["slots"], rng)
        made.setdefault(text, Prompt("own", task, text))
    if len(made) < count:
        raise InputError(f"the templates yield only {len(made)} prompts, {count} are wanted")
    return list(made.values())


def read_prompts(path: Path, seed: int) -> list[Prompt]:
    """The prompts of a file.

    Raises:
        InputError: it cannot be read, or a line has neither messages nor text.
    """
    rng = random.Random(seed)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        try:
            prompts.extend(_from_row(json.loads(line), path.stem, rng))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(f"{path}:{number}: expected messages or text") from error
    return prompts


def _from_row(row: dict[str, Any], source: str, rng: random.Random) -> Iterator[Prompt]:
    if "messages" in row:
        texts = [turn["content"] for turn in row["messages"] if turn["role"] == "user"]
        yield Prompt(source, "chat", texts[0])
        return
    if "turns" in row:
        yield Prompt(source, row.get("task", "chat"), row["turns"][0])
        return
    data = _data()
    for passage in _passages(row["text"], rng):
        task = rng.choice(list(data["passages"]))
        words = _WORD.findall(passage) or [passage.split()[0]]
        slots = {"passage": [passage], "title": words[:1], "word": words}
        yield Prompt(source, task, _fill(rng.choice(data["passages"][task]), slots, rng))


def _passages(text: str, rng: random.Random) -> Iterator[str]:
    """Cut a text into passages of varied length, at the end of a sentence where there is one."""
    shortest, longest = _PASSAGE_CHARS
    while len(text) >= shortest:
        window = text[: rng.randint(shortest, longest)]
        end = max(window.rfind(". "), window.rfind(".\n"))
        cut = end + 1 if end >= shortest // 2 else len(window)
        yield text[:cut].strip()
        text = text[cut:].strip()


def _fill(template: str, slots: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    return _SLOT.sub(lambda match: rng.choice(slots[match[1]]), template)


def _data() -> dict[str, Any]:
    return json.loads(_DATA.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
