"""Prompts served by engines in this process, one at a time; and the figures of that."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from actors.request_manager.engine import Engine
from actors.request_manager.generation import (
    GenerationRequest,
    SpeculationOptions,
    SpeculationStats,
)

ALL_TASKS = "all"


@dataclass(frozen=True)
class Asked:
    """A prompt as every arm gets it."""

    task: str
    request: GenerationRequest


@dataclass(frozen=True)
class Served:
    """What one arm made of one prompt.

    Attributes:
        decode_s: from the first token to the last.
    """

    task: str
    token_ids: tuple[int, ...]
    decode_s: float
    stats: SpeculationStats

    @property
    def num_decoded(self) -> int:
        """Tokens after the first, which is the prefill's."""
        return max(len(self.token_ids) - 1, 0)


class Arm(NamedTuple):
    """Who answers, and what the requests wish of it."""

    engine: Engine
    wishes: SpeculationOptions = SpeculationOptions()


async def serve(arm: Arm, asked: Asked) -> Served:
    """One request to its end."""
    tokens: tuple[int, ...] = ()
    stats, first_s, last_s = SpeculationStats(), 0.0, 0.0
    async for event in arm.engine.generate(replace(asked.request, speculation=arm.wishes)):
        if event.token_ids:
            last_s = time.monotonic()
            first_s = first_s or last_s
            tokens += event.token_ids
        stats = event.stats or stats
    return Served(asked.task, tokens, last_s - first_s, stats)


async def serve_in_turns(
    arms: Mapping[str, Arm], prompts: Sequence[Asked]
) -> dict[str, list[Served]]:
    """Every prompt once in every arm, one at a time; the arms take turns to be first."""
    served: dict[str, list[Served]] = {name: [] for name in arms}
    names = list(arms)
    for turn, asked in enumerate(prompts):
        shift = turn % len(names)
        for name in (*names[shift:], *names[:shift]):
            served[name].append(await serve(arms[name], asked))
    return served


def summary(served: Sequence[Served]) -> dict[str, dict[str, float]]:
    """Figures by task, and over all: ratios of sums."""
    by_task: defaultdict[str, list[Served]] = defaultdict(list)
    for one in served:
        if one.stats.num_llm_steps:
            by_task[ALL_TASKS].append(one)
            by_task[one.task].append(one)
    return {task: figures(answers) for task, answers in by_task.items()}


def figures(answers: Sequence[Served]) -> dict[str, float]:
    """Of answers that had steps, taken together."""
    steps = sum(one.stats.num_llm_steps for one in answers)
    tokens = sum(one.num_decoded for one in answers)
    return {
        "tokens_per_step": tokens / steps,
        "ms_per_token": 1e3 * sum(one.decode_s for one in answers) / tokens,
        "nodes_per_step": sum(one.stats.num_draft_tokens for one in answers) / steps,
        "draft_ms_per_step": 1e3 * sum(one.stats.draft_s for one in answers) / steps,
        "llm_ms_per_step": 1e3 * sum(one.stats.step_s for one in answers) / steps,
    }
