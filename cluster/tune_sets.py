"""What a draft model is to learn from, as tasks for the teacher.

Given answers (token ids) are scored as they are; prompts are put into the LLM's chat template and
answered. Whoever names a file answers for its terms and for its not being an evaluation set; what
is named for evaluation is refused for training if a prompt stands in both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.errors import InputError
from actors.ssm.boost_tuning.prompts import Prompt, own_prompts, read_prompts
from cluster.generate_command import encode_prompt
from cluster.tune_teacher import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class SetOptions:
    """Which sets.

    Attributes:
        answers: files of given answers, one JSON object a line: source, prompt and answer.
        prompts: files of prompts and passages to answer.
        num_own_prompts: of our own to answer.
        evaluation: files of prompts to measure on.
        sampled_share: part of the prompts that is answered at temperature 1, the rest greedily.
        seed: of own prompts, passages and order.
    """

    answers: Sequence[Path]
    prompts: Sequence[Path]
    num_own_prompts: int
    evaluation: Sequence[Path]
    sampled_share: float
    seed: int


def training_tasks(options: SetOptions, tokenizer: PreTrainedTokenizerBase) -> list[Task]:
    """Everything to learn from, in random order.

    Raises:
        InputError: a file cannot be used, or a prompt is also one to measure on.
    """
    rng = random.Random(options.seed)
    prompts = own_prompts(options.num_own_prompts, options.seed)
    for path in options.prompts:
        prompts.extend(read_prompts(path, options.seed))
    kept_apart = {task.prompt for task in evaluation_tasks(options, tokenizer)}
    tasks = [
        Task(prompt.source, _encode(prompt, tokenizer), float(rng.random() < options.sampled_share))
        for prompt in prompts
    ]
    for path in options.answers:
        tasks.extend(_given_answers(path))
    for task in tasks:
        if task.prompt in kept_apart:
            raise InputError(f"a prompt of {task.source} is also in an evaluation set")
    rng.shuffle(tasks)
    return tasks


def evaluation_tasks(options: SetOptions, tokenizer: PreTrainedTokenizerBase) -> list[Task]:
    """What to measure on, to be answered greedily; the source is the prompt's task."""
    return [
        Task(f"{prompt.source}: {prompt.task}", _encode(prompt, tokenizer))
        for path in options.evaluation
        for prompt in read_prompts(path, options.seed)
    ]


def expand(paths: Iterable[Path]) -> list[Path]:
    """Files, and for a folder its `.jsonl` files. Raises InputError where there is none."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not all(file.is_file() for file in found) or not found:
            raise InputError(f"{path}: no such file, or a folder without .jsonl files")
        files.extend(found)
    return files


def _encode(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    return encode_prompt(tokenizer, prompt.text)


def _given_answers(path: Path) -> list[Task]:
    tasks: list[Task] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row: dict[str, Any] = json.loads(line)
            prompt, answer = tuple(row["prompt"]), tuple(row["answer"])
            usable = all(isinstance(token, int) for token in prompt + answer)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}:{number}: expected prompt and answer as token ids") from error
        if not (usable and prompt and answer):
            raise InputError(f"{path}:{number}: expected prompt and answer as token ids")
        tasks.append(Task(str(row.get("source", path.stem)), prompt, answer=answer))
    return tasks
