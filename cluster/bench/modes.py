"""Modes of speculation against each other over HTTP: pairs in one run, taking turns to be first."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from cluster.bench.client import Answer, stream_chat
from cluster.bench.prompts import Prompt

PLAIN = "plain"
ALL_TASKS = "all"


@dataclass(frozen=True)
class Workload:
    """What every mode is asked to do."""

    prompts: Sequence[Prompt]
    max_tokens: int
    temperature: float
    seed: int = 0


@dataclass
class ModeResult:
    """The answers of one mode, in the order of the prompts."""

    mode: str
    prompts: list[Prompt] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def summary(self, task: str = ALL_TASKS) -> dict[str, float | None]:
        """Medians over the prompts of a task; sums where a ratio of sums is meant."""
        chosen = [
            answer
            for prompt, answer in zip(self.prompts, self.answers, strict=True)
            if task in (ALL_TASKS, prompt.task) and answer.num_decoded > 0
        ]
        steps = sum(answer.speculation["num_llm_steps"] for answer in chosen)
        if not steps:
            return dict.fromkeys(SUMMARY_FIELDS)
        decoded = sum(answer.num_decoded for answer in chosen)
        drafts = sum(answer.speculation["num_draft_tokens"] for answer in chosen)
        accepted = sum(answer.speculation["num_accepted_draft_tokens"] for answer in chosen)
        outside = [_outside_forward_s(answer) for answer in chosen]
        return {
            "ms_per_token": 1e3 * statistics.median(a.decode_s / a.num_decoded for a in chosen),
            "tokens_per_step": decoded / steps,
            "draft_nodes_per_step": drafts / steps,
            "acceptance_rate": accepted / drafts if drafts else None,
            "outside_forward_ms_per_step": 1e3 * statistics.median(outside),
            "ttft_ms": 1e3 * statistics.median(a.time_to_first_token_s for a in chosen),
        }


SUMMARY_FIELDS = (
    "ms_per_token",
    "tokens_per_step",
    "draft_nodes_per_step",
    "acceptance_rate",
    "outside_forward_ms_per_step",
    "ttft_ms",
)


def modes_of(drafters: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Plain decoding, every drafter alone, and all of them merged."""
    modes: dict[str, dict[str, Any]] = {PLAIN: {"enabled": False}}
    modes.update({name: {"drafters": [name]} for name in drafters})
    if len(drafters) > 1:
        modes["merged"] = {}
    return modes


async def run_alone(
    url: str, workload: Workload, modes: Mapping[str, dict[str, Any]]
) -> dict[str, ModeResult]:
    """Every prompt in every mode, one request at a time."""
    results = {mode: ModeResult(mode) for mode in modes}
    async with httpx.AsyncClient(base_url=url, timeout=300.0) as client:
        for mode in modes:
            await stream_chat(client, "Warm up.", 16, _options(workload, modes[mode]))
        for turn, prompt in enumerate(workload.prompts):
            for mode in _turned(list(modes), turn):
                options = _options(workload, modes[mode])
                answer = await stream_chat(client, prompt.text, workload.max_tokens, options)
                results[mode].prompts.append(prompt)
                results[mode].answers.append(answer)
    return results


async def run_together(
    url: str, workload: Workload, modes: Mapping[str, dict[str, Any]], num_streams: int
) -> dict[str, float]:
    """Output tokens per second of each mode with `num_streams` requests open at once."""
    rates = {}
    async with httpx.AsyncClient(base_url=url, timeout=300.0) as client:
        for mode, wishes in modes.items():
            options = _options(workload, wishes)
            queue = iter(workload.prompts)
            since = time.monotonic()
            counts = await asyncio.gather(
                *(_drain(client, queue, workload.max_tokens, options) for _ in range(num_streams))
            )
            rates[mode] = sum(counts) / (time.monotonic() - since)
    return rates


async def _drain(
    client: httpx.AsyncClient, queue: Iterator[Prompt], max_tokens: int, options: Mapping[str, Any]
) -> int:
    num_tokens = 0
    for prompt in queue:
        num_tokens += len((await stream_chat(client, prompt.text, max_tokens, options)).token_ids)
    return num_tokens


def _outside_forward_s(answer: Answer) -> float:
    """Seconds per step that were not the model's forward pass, as the client sees it."""
    account = answer.speculation
    return float((answer.decode_s - account["forward_s"]) / account["num_llm_steps"])


def _options(workload: Workload, wishes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "temperature": workload.temperature,
        "seed": workload.seed,
        "speculation": dict(wishes),
    }


def _turned(names: list[str], turn: int) -> list[str]:
    shift = turn % len(names)
    return names[shift:] + names[:shift]
