"""Modes of speculation against each other over HTTP: pairs in one run, taking turns to be first."""

from __future__ import annotations

import asyncio
import functools
import itertools
import operator
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from actors.errors import InputError
from cluster.bench.client import Answer, stream_chat
from cluster.bench.prediction import Totals
from cluster.bench.prompts import Prompt
from cluster.bench.snapshots import Counts, take_snapshot

PLAIN = "plain"
ALL_TASKS = "all"


@dataclass(frozen=True)
class Workload:
    """What every mode is asked to do.

    Every request has a seed of its own, counted up from 0: with one seed for all modes, the second
    would find the noise at hand that the first one computed.

    Attributes:
        repeats: how often each prompt is asked in each mode; one is enough in greedy decoding.
        more: what else every request says.
    """

    prompts: Sequence[Prompt]
    max_tokens: int
    temperature: float
    repeats: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)
    seeds: Iterator[int] = field(default_factory=itertools.count)

    @property
    def turns(self) -> list[Prompt]:
        return [*self.prompts] * self.repeats

    def options(self, wishes: Mapping[str, Any]) -> dict[str, Any]:
        """What the next request says of itself, but for its prompt."""
        return {
            "temperature": self.temperature,
            "seed": next(self.seeds),
            "speculation": dict(wishes),
            **self.more,
        }


@dataclass
class ModeResult:
    """The answers of one mode, in the order of the turns.

    Attributes:
        counts: what the server's counters grew by with each answer.
    """

    mode: str
    prompts: list[Prompt] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)

    @property
    def tasks(self) -> list[str]:
        """All of them together, then each."""
        return [ALL_TASKS, *dict.fromkeys(prompt.task for prompt in self.prompts)]

    def add(self, prompt: Prompt, answer: Answer, counts: Counts) -> None:
        self.prompts.append(prompt)
        self.answers.append(answer)
        self.counts.append(counts)

    def totals(self, task: str = ALL_TASKS) -> Totals | None:
        """Sums over the answers to a task; None if none of them had a step to decode."""
        chosen = [(self.answers[place], self.counts[place]) for place in self._places(task)]
        answers = [answer for answer, _ in chosen]
        if not answers:
            return None
        return Totals(
            decode_s=sum(answer.decode_s for answer in answers),
            num_decoded=sum(answer.num_decoded for answer in answers),
            num_steps=sum(answer.speculation["num_llm_steps"] for answer in answers),
            draft_s=sum(answer.speculation["draft_s"] for answer in answers),
            step_s=sum(answer.speculation["step_s"] for answer in answers),
            counts=functools.reduce(operator.add, (counts for _, counts in chosen)),
        )

    def summary(self, task: str = ALL_TASKS) -> dict[str, float | None]:
        """Medians over the prompts of a task; sums where a ratio of sums is meant."""
        chosen = [self.answers[place] for place in self._places(task)]
        steps = sum(answer.speculation["num_llm_steps"] for answer in chosen)
        if not steps:
            return dict.fromkeys(SUMMARY_FIELDS)
        decoded = sum(answer.num_decoded for answer in chosen)
        drafts = sum(answer.speculation["num_draft_tokens"] for answer in chosen)
        draft_s = sum(answer.speculation["draft_s"] for answer in chosen)
        step_s = sum(answer.speculation["step_s"] for answer in chosen)
        accepted = sum(answer.speculation["num_accepted_draft_tokens"] for answer in chosen)
        outside = [_outside_forward_s(answer) for answer in chosen]
        return {
            "ms_per_token": 1e3 * statistics.median(a.decode_s / a.num_decoded for a in chosen),
            "tokens_per_step": decoded / steps,
            "draft_nodes_per_step": drafts / steps,
            "acceptance_rate": accepted / drafts if drafts else None,
            "draft_ms_per_step": 1e3 * draft_s / steps,
            "llm_ms_per_step": 1e3 * step_s / steps,
            "outside_forward_ms_per_step": 1e3 * statistics.median(outside),
            "ttft_ms": 1e3 * statistics.median(a.time_to_first_token_s for a in chosen),
        }

    def _places(self, task: str) -> list[int]:
        return [
            place
            for place, (prompt, answer) in enumerate(zip(self.prompts, self.answers, strict=True))
            if task in (ALL_TASKS, prompt.task) and answer.num_decoded > 0
        ]


SUMMARY_FIELDS = (
    "ms_per_token",
    "tokens_per_step",
    "draft_nodes_per_step",
    "acceptance_rate",
    "draft_ms_per_step",
    "llm_ms_per_step",
    "outside_forward_ms_per_step",
    "ttft_ms",
)


@dataclass(frozen=True)
class StreamResult:
    """Many requests of one mode open at once.

    Attributes:
        tokens_per_s: output tokens of all of them.
        draft_ms_per_step, llm_ms_per_step: of the steps that a request was in, as `summary` has
            them for one request alone.
    """

    tokens_per_s: float
    draft_ms_per_step: float
    llm_ms_per_step: float


def modes_of(
    drafters: Sequence[str], wanted: Sequence[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Plain decoding, every drafter alone, and all of them merged.

    Args:
        drafters: the configuration's.
        wanted: names of modes; None for all. Plain decoding, which the others are held against, is
            always among them.

    Raises:
        InputError: a name that there is not.
    """
    modes: dict[str, dict[str, Any]] = {PLAIN: {"enabled": False}}
    modes.update({name: {"drafters": [name]} for name in drafters})
    if len(drafters) > 1:
        modes["merged"] = {}
    unknown = [name for name in wanted or () if name not in modes]
    if unknown:
        raise InputError(f"no mode {unknown[0]!r}; there are: {', '.join(modes)}", "--modes")
    return {
        mode: wishes for mode, wishes in modes.items() if wanted is None or mode in (PLAIN, *wanted)
    }


async def run_alone(
    url: str, workload: Workload, modes: Mapping[str, dict[str, Any]]
) -> dict[str, ModeResult]:
    """Every turn in every mode, one request at a time."""
    results = {mode: ModeResult(mode) for mode in modes}
    async with httpx.AsyncClient(base_url=url, timeout=300.0) as client:
        for mode in modes:
            await stream_chat(client, "Warm up.", 16, workload.options(modes[mode]))
        for turn, prompt in enumerate(workload.turns):
            for mode in _turned(list(modes), turn):
                options = workload.options(modes[mode])
                before = await take_snapshot(client)
                answer = await stream_chat(client, prompt.text, workload.max_tokens, options)
                results[mode].add(prompt, answer, await take_snapshot(client) - before)
    return results


async def run_together(
    url: str, workload: Workload, modes: Mapping[str, dict[str, Any]], num_streams: int
) -> dict[str, StreamResult]:
    """Every turn in every mode, with `num_streams` requests open at once."""
    results = {}
    async with httpx.AsyncClient(base_url=url, timeout=300.0) as client:
        for mode, wishes in modes.items():
            queue = iter(workload.turns)
            since = time.monotonic()
            drained = await asyncio.gather(
                *(_drain(client, queue, workload, wishes) for _ in range(num_streams))
            )
            passed_s = time.monotonic() - since
            results[mode] = _stream_result(list(itertools.chain(*drained)), passed_s)
    return results


async def _drain(
    client: httpx.AsyncClient,
    queue: Iterator[Prompt],
    workload: Workload,
    wishes: Mapping[str, Any],
) -> list[Answer]:
    return [
        await stream_chat(client, prompt.text, workload.max_tokens, workload.options(wishes))
        for prompt in queue
    ]


def _stream_result(answers: Sequence[Answer], passed_s: float) -> StreamResult:
    steps = sum(answer.speculation["num_llm_steps"] for answer in answers) or 1
    return StreamResult(
        sum(len(answer.token_ids) for answer in answers) / passed_s,
        1e3 * sum(answer.speculation["draft_s"] for answer in answers) / steps,
        1e3 * sum(answer.speculation["step_s"] for answer in answers) / steps,
    )


def _outside_forward_s(answer: Answer) -> float:
    """Seconds per step that were not the model's forward pass, as the client sees it."""
    account = answer.speculation
    return float((answer.decode_s - account["forward_s"]) / account["num_llm_steps"])


def _turned(names: list[str], turn: int) -> list[str]:
    shift = turn % len(names)
    return names[shift:] + names[:shift]
