"""Interleaved pairs of two arms that answer the same prompts: what is counted, and their ratio.

As many streams as the batch has rows are kept open, each asking for one answer after the other.
Answers have different lengths, the same in both arms: else all would begin and end together in one
arm, and one by one in the other, each with a prefill of its own. What counts is the tokens that
come while the batch is full, until the first stream finds nothing more to ask. The arms take turns
to be first, and the batch sizes take turns too, so that a machine that drifts does so under all of
them. Every prompt is computed once in both arms before its pair: they find equal KV to reuse.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from cluster.bench.prompts import SAMPLE, load_prompts
from cluster.bench.raw_client import RawAnswer
from cluster.config import Config
from cluster.generate_command import encode_prompt
from cluster.models import resolve_model
from cluster.tokenizer import load_tokenizer

MAX_PROMPTS = 1000
NUM_RESAMPLES = 10_000

Prompt = Sequence[int]
Ask = Callable[[Prompt, int], Awaitable[RawAnswer]]
"""Streams one answer to a prompt, of so many tokens."""
Arms = Mapping[str, Ask]
"""Two, by name; ratios are of the second to the first."""


@dataclass(frozen=True)
class Run:
    """One arm of one pair.

    Attributes:
        begun_s, full_until_s: of the time in which the batch was full, by the monotonic clock.
    """

    begun_s: float
    full_until_s: float
    answers: Sequence[RawAnswer]

    @property
    def tokens_per_s(self) -> float:
        """While the batch was full."""
        num_tokens = sum(answer.tokens_by(self.full_until_s) for answer in self.answers)
        return num_tokens / (self.full_until_s - self.begun_s)


@dataclass
class Pairs:
    """All pairs of one batch size, each run by arm.

    Attributes:
        base, other: names of the arms.
    """

    base: str
    other: str
    runs: list[Mapping[str, Run]] = field(default_factory=list)

    @property
    def arms(self) -> tuple[str, str]:
        return self.base, self.other

    @property
    def ratios(self) -> list[float]:
        return [run[self.other].tokens_per_s / run[self.base].tokens_per_s for run in self.runs]

    def summary(self) -> dict[str, Any]:
        """Medians over the pairs; texts are counted one by one."""
        low, high = interval(self.ratios)
        answers = [answer for run in self.runs for answer in run[self.other].answers]
        base = [answer for run in self.runs for answer in run[self.base].answers]
        steps = max(1, sum(answer.num_llm_steps for answer in answers))
        return {
            "pairs": len(self.runs),
            "ratio": statistics.median(self.ratios),
            "low": low,
            "high": high,
            **{
                f"{arm}_tokens_per_s": statistics.median(r[arm].tokens_per_s for r in self.runs)
                for arm in self.arms
            },
            "tokens_per_step": sum(answer.num_tokens - 1 for answer in answers) / steps,
            "nodes_per_step": sum(answer.num_draft_nodes for answer in answers) / steps,
            "texts": len(answers),
            "equal_texts": sum(
                one.token_ids == other.token_ids for one, other in zip(answers, base, strict=True)
            ),
            "ratios": self.ratios,
        }


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The median's bootstrap interval: percentiles of the medians of resamples."""
    chance = random.Random(0)
    medians = sorted(
        statistics.median(chance.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES)
    )
    tail = round((1.0 - confidence) / 2.0 * NUM_RESAMPLES)
    return medians[tail], medians[-1 - tail]


def lengths(count: int, mean: int) -> list[int]:
    """So many lengths of answers, from half the mean to one and a half, in no order."""
    chance = random.Random(0)
    return [chance.randint(max(1, mean // 2), mean + mean // 2) for _ in range(count)]


@dataclass(frozen=True)
class Plan:
    """How many of what.

    Attributes:
        batches: numbers of streams that are kept open.
        per_stream: answers of a stream in one pair.
        max_tokens: of an answer, on average.
    """

    batches: Sequence[int]
    num_pairs: int
    per_stream: int
    max_tokens: int


async def run_arm(
    ask: Ask, prompts: Sequence[Prompt], num_streams: int, max_tokens: Sequence[int]
) -> Run:
    """All prompts to the ends of their answers, `num_streams` at one time.

    Args:
        max_tokens: of each answer.
    """
    waiting = iter(enumerate(prompts))
    answers: dict[int, RawAnswer] = {}
    ends: list[float] = []

    async def stream() -> None:
        for place, prompt in waiting:
            answers[place] = await ask(prompt, max_tokens[place])
        ends.append(time.monotonic())

    since = time.monotonic()
    await asyncio.gather(*(stream() for _ in range(num_streams)))
    return Run(since, min(ends), [answers[place] for place in range(len(prompts))])


async def run_pairs(prompts: Sequence[Prompt], arms: Arms, plan: Plan) -> dict[int, Pairs]:
    """Every pair of every batch size, by batch size; one of each before, which is not counted."""
    base, other = arms
    found = {batch: Pairs(base, other) for batch in plan.batches}
    supply = cycle(prompts)
    for number in range(-1, plan.num_pairs):
        for batch in plan.batches:
            chosen = list(islice(supply, batch * plan.per_stream))
            sizes = lengths(len(chosen), plan.max_tokens)
            for ask in arms.values():
                await run_arm(ask, chosen, batch, [1] * len(chosen))
            order = list(arms)[:: -1 if number % 2 else 1]
            runs = {arm: await run_arm(arms[arm], chosen, batch, sizes) for arm in order}
            if number >= 0:
                found[batch].runs.append(runs)
    return found


def add_arguments(parser: argparse.ArgumentParser, batches: Sequence[int]) -> None:
    """What every comparison by pairs can be told."""
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--batches", type=int, nargs="+", default=batches, metavar="N")
    parser.add_argument("--pairs", type=int, default=10, metavar="N")
    parser.add_argument("--prompts", type=Path, default=SAMPLE, metavar="FILE")
    parser.add_argument("--per-stream", type=int, default=4, metavar="N", help="answers a stream")
    parser.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="of an answer, on average"
    )


def plan_of(arguments: argparse.Namespace) -> Plan:
    return Plan(arguments.batches, arguments.pairs, arguments.per_stream, arguments.max_tokens)


def read_prompts(config: Config, path: Path) -> list[Prompt]:
    """A file's prompts as the model's tokens."""
    tokenizer = load_tokenizer(resolve_model(config.model.path)).tokenizer
    return [encode_prompt(tokenizer, prompt.text) for prompt in load_prompts(path, MAX_PROMPTS)]


def print_pairs(found: Mapping[int, Pairs]) -> None:
    """A table with a line for each batch size, then everything as one JSON line."""
    report = {batch: pairs.summary() for batch, pairs in found.items()}
    arms = {f"{arm}_tokens_per_s": None for pairs in found.values() for arm in pairs.arms}
    columns = (*arms, "ratio", "low", "high", "tokens_per_step", "nodes_per_step")
    print(f"{'batch':>6}" + "".join(f"{column:>24}" for column in columns))
    for batch, figures in report.items():
        print(f"{batch:>6}" + "".join(f"{figures[column]:24.3f}" for column in columns))
    print(json.dumps(report))
