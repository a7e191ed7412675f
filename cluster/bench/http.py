"""What HTTP costs: the same prompts to the same model, over HTTP and straight at an engine.

    python -m cluster.bench.http CONFIG [--streams 1 8 16] [--max-tokens N] [--rounds N]

The real server runs in processes of its own; a second engine with an LLM of its own is driven from
here, without Ray Serve and HTTP. They take turns, round by round, so that a machine that drifts
does so under both. Prints medians over the rounds, of the ratio with a bootstrap interval, then one
JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from actors.request_manager.generation import GenerationRequest, StopConditions
from actors.sampling import SamplingParams
from cluster import ray_api
from cluster.bench.paired_runs import interval
from cluster.bench.prompts import SAMPLE, load_prompts
from cluster.bench.raw_client import stream_completion
from cluster.bench.server import running_server
from cluster.config import Config, load_config
from cluster.generate_command import encode_prompt
from cluster.launch import launch
from cluster.models import resolve_model
from cluster.placement import plan_placement
from cluster.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Timing:
    """One stream: seconds from sending to its first token, and its tokens."""

    first_token_s: float
    num_tokens: int


Ask = Callable[[Sequence[int], int], Awaitable[Timing]]
"""Streams one answer to a prompt of token ids with so many tokens at most."""


@dataclass(frozen=True)
class Round:
    """Streams that were opened together."""

    seconds: float
    timings: Sequence[Timing]

    @property
    def tokens_per_s(self) -> float:
        return sum(timing.num_tokens for timing in self.timings) / self.seconds

    @property
    def first_token_s(self) -> float:
        return statistics.median(timing.first_token_s for timing in self.timings)


async def ask_http(url: str, prompt: Sequence[int], max_tokens: int) -> Timing:
    """Stream one answer. Raises PeerError if it breaks off."""
    answer = await stream_completion(url, prompt, max_tokens, {})
    return Timing(answer.first_token_s, answer.num_tokens)


async def measure(
    prompts: Sequence[Sequence[int]], max_tokens: int, num_streams: int, ask: Ask
) -> Round:
    """Open `num_streams` streams at once and wait for all of them."""
    since = time.monotonic()
    chosen = islice(cycle(prompts), num_streams)
    timings = await asyncio.gather(*(ask(prompt, max_tokens) for prompt in chosen))
    return Round(time.monotonic() - since, timings)


async def compare(
    config: Config, url: str, prompts: Sequence[Sequence[int]], arguments: argparse.Namespace
) -> dict[int, dict[str, list[Round]]]:
    """All rounds, by number of streams and way."""
    launched = await launch(config)

    async def ask_engine(prompt: Sequence[int], max_tokens: int) -> Timing:
        request = GenerationRequest(
            "bench",
            tuple(prompt),
            SamplingParams(temperature=0.0),
            StopConditions(max_tokens, ignore_eos=True),
        )
        sent_s, first_token_s, num_tokens = time.monotonic(), 0.0, 0
        async with aclosing(launched.engine.generate(request)) as events:
            async for event in events:
                if event.token_ids and not num_tokens:
                    first_token_s = time.monotonic() - sent_s
                num_tokens += len(event.token_ids)
        return Timing(first_token_s, num_tokens)

    ways: dict[str, Ask] = {
        "engine": ask_engine,
        "http": lambda prompt, max_tokens: ask_http(url, prompt, max_tokens),
    }
    try:
        for ask in ways.values():
            await measure(prompts, 16, max(arguments.streams), ask)  # shapes are compiled now
        rounds: dict[int, dict[str, list[Round]]] = {}
        for number in range(arguments.rounds):
            for num_streams in arguments.streams:
                by_way = rounds.setdefault(num_streams, {way: [] for way in ways})
                for way in sorted(ways, reverse=number % 2 == 1):
                    by_way[way].append(
                        await measure(prompts, arguments.max_tokens, num_streams, ways[way])
                    )
        return rounds
    finally:
        await launched.stop()


def summary(rounds: dict[str, list[Round]]) -> dict[str, float]:
    """Medians over the rounds, and HTTP beside the engine in each."""
    rate = {way: statistics.median(r.tokens_per_s for r in done) for way, done in rounds.items()}
    first = {way: statistics.median(r.first_token_s for r in done) for way, done in rounds.items()}
    together = [*zip(rounds["engine"], rounds["http"], strict=True)]
    ratios = [http.tokens_per_s / engine.tokens_per_s for engine, http in together]
    more_s = statistics.median(h.first_token_s - e.first_token_s for e, h in together)
    low, high = interval(ratios)
    return {
        "engine_tokens_per_s": rate["engine"],
        "http_tokens_per_s": rate["http"],
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "engine_ttft_ms": 1e3 * first["engine"],
        "http_ttft_ms": 1e3 * first["http"],
        "ttft_more_ms": 1e3 * more_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.bench.http", description=__doc__)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16], metavar="N")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    tokenizer = load_tokenizer(resolve_model(config.model.path)).tokenizer
    # As a chat: what is continued bare may begin with tokens that have no text.
    prompts = [encode_prompt(tokenizer, prompt.text) for prompt in load_prompts(SAMPLE, 10)]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(arguments.config, Path(folder) / "server.log") as url,
    ):
        try:
            ray_api.start_cluster(plan_placement(config).num_cpus)
            rounds = asyncio.run(compare(config, url, prompts, arguments))
        finally:
            ray_api.stop_cluster()
    table = {num_streams: summary(by_way) for num_streams, by_way in rounds.items()}
    names = list(next(iter(table.values())))
    print(f"{'streams':>8}" + "".join(f"{name:>22}" for name in names))
    for num_streams, figures in table.items():
        print(f"{num_streams:>8}" + "".join(f"{figures[name]:22.2f}" for name in names))
    print(json.dumps(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
