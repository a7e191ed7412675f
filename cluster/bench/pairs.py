"""Does speculation with its budget pay, by batch size? Interleaved pairs on one server.

    python -m cluster.bench.pairs CONFIG [--batches 1 4 16 32] [--pairs 10] [--per-stream 4]
                                         [--prompts FILE]

One pair answers the same prompts twice: with the configuration's speculation, and plainly. As many
streams as the batch has rows are kept open, each asking for one answer after the other. What counts
is the tokens that come before the first stream finds nothing more to ask, as long as the batch is
full: under speculation some answers are over sooner, plainly all end together. The arms take turns
to be first, and the batch sizes take turns too, so that a machine that drifts does so under all of
them. Every prompt is computed once before its pair: the arms find equal KV to reuse. Every answer
has the same number of tokens. Prints for each batch size the median of the pairs' throughput ratios
with a bootstrap interval, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from cluster.bench.prompts import SAMPLE, load_prompts
from cluster.bench.raw_client import RawAnswer, stream_completion
from cluster.bench.server import running_server
from cluster.config import load_config
from cluster.generate_command import encode_prompt
from cluster.models import resolve_model
from cluster.tokenizer import load_tokenizer

PLAIN, BUDGET = "plain", "budget"
ARMS: Mapping[str, Mapping[str, Any]] = {PLAIN: {"enabled": False}, BUDGET: {}}
"""What the requests of each arm wish of speculation."""

MAX_PROMPTS = 1000
NUM_RESAMPLES = 10_000
COLUMNS = ("plain_tokens_per_s", "budget_tokens_per_s", "ratio", "low", "high", "tokens_per_step")

Prompt = Sequence[int]
Ask = Callable[[Prompt, int, Mapping[str, Any]], Awaitable[RawAnswer]]
"""Streams one answer to a prompt with so many tokens, the request having these fields too."""


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
    """All pairs of one batch size, each run by arm."""

    runs: list[dict[str, Run]] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [run[BUDGET].tokens_per_s / run[PLAIN].tokens_per_s for run in self.runs]

    def summary(self) -> dict[str, Any]:
        """Medians over the pairs; texts are counted one by one."""
        low, high = interval(self.ratios)
        answers = [answer for run in self.runs for answer in run[BUDGET].answers]
        plain = [answer for run in self.runs for answer in run[PLAIN].answers]
        return {
            "pairs": len(self.runs),
            "ratio": statistics.median(self.ratios),
            "low": low,
            "high": high,
            **{
                f"{arm}_tokens_per_s": statistics.median(r[arm].tokens_per_s for r in self.runs)
                for arm in ARMS
            },
            "tokens_per_step": sum(answer.num_tokens - 1 for answer in answers)
            / max(1, sum(answer.num_llm_steps for answer in answers)),
            "texts": len(answers),
            "equal_texts": sum(
                one.token_ids == other.token_ids for one, other in zip(answers, plain, strict=True)
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


async def run_arm(
    arm: str, prompts: Sequence[Prompt], num_streams: int, max_tokens: int, ask: Ask
) -> Run:
    """All prompts to the ends of their answers, `num_streams` at one time."""
    more = {"speculation": dict(ARMS[arm]), "return_token_ids": True}
    waiting = iter(enumerate(prompts))
    answers: dict[int, RawAnswer] = {}
    ends: list[float] = []

    async def stream() -> None:
        for place, prompt in waiting:
            answers[place] = await ask(prompt, max_tokens, more)
        ends.append(time.monotonic())

    since = time.monotonic()
    await asyncio.gather(*(stream() for _ in range(num_streams)))
    return Run(since, min(ends), [answers[place] for place in range(len(prompts))])


async def run_pairs(
    prompts: Sequence[Prompt],
    batches: Sequence[int],
    num_pairs: int,
    per_stream: int,
    max_tokens: int,
    ask: Ask,
) -> dict[int, Pairs]:
    """Every pair of every batch size, by batch size; one of each before, which is not counted."""
    found = {batch: Pairs() for batch in batches}
    supply = cycle(prompts)
    for number in range(-1, num_pairs):
        for batch in batches:
            chosen = list(islice(supply, batch * per_stream))
            await run_arm(PLAIN, chosen, batch, 1, ask)
            arms = list(ARMS)[:: -1 if number % 2 else 1]
            runs = {arm: await run_arm(arm, chosen, batch, max_tokens, ask) for arm in arms}
            if number >= 0:
                found[batch].runs.append(runs)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.bench.pairs", description=__doc__)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 32], metavar="N")
    parser.add_argument("--pairs", type=int, default=10, metavar="N")
    parser.add_argument("--prompts", type=Path, default=SAMPLE, metavar="FILE")
    parser.add_argument("--per-stream", type=int, default=4, metavar="N", help="answers a stream")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="of an answer")
    arguments = parser.parse_args(argv)
    config = load_config(arguments.config)
    tokenizer = load_tokenizer(resolve_model(config.model.path)).tokenizer
    texts = load_prompts(arguments.prompts, MAX_PROMPTS)
    prompts = [encode_prompt(tokenizer, prompt.text) for prompt in texts]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(arguments.config, Path(folder) / "server.log") as url,
    ):

        async def ask(prompt: Prompt, max_tokens: int, more: Mapping[str, Any]) -> RawAnswer:
            return await stream_completion(url, prompt, max_tokens, more)

        pairs = asyncio.run(
            run_pairs(
                prompts,
                arguments.batches,
                arguments.pairs,
                arguments.per_stream,
                arguments.max_tokens,
                ask,
            )
        )
    report = {batch: found.summary() for batch, found in pairs.items()}
    print(f"{len(set(map(tuple, prompts)))} different prompts")
    print(f"{'batch':>6}" + "".join(f"{column:>21}" for column in COLUMNS))
    for batch, figures in report.items():
        print(f"{batch:>6}" + "".join(f"{figures[column]:21.3f}" for column in COLUMNS))
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
