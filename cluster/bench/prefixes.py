"""What prefix reuse brings: requests that begin alike, with and without it, in one process.

`python -m cluster.bench.prefixes CONFIG` runs the manager's engine over a rank of the
configuration's model, without Ray or HTTP. In each round all requests have the same first tokens,
new in every round, and one of their own; they come all at once. Both settings serve the same
requests, taking turns to be first. Prints a table, then one JSON line; the exit status is 1 unless
both answered every request alike, token for token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from prometheus_client import CollectorRegistry

from actors.decoder.kv_cache import num_blocks_for
from actors.errors import PeerError
from actors.llm.loading import DTYPES, LoadedModel, load_model
from actors.llm.rank import Rank
from actors.messages import LLMDescription, StepMessage, StepReply
from actors.request_manager.engine import Engine
from actors.request_manager.generation import GenerationRequest, StopConditions
from actors.sampling import SamplingParams
from cluster.config import Config, load_config
from cluster.metrics import Metrics
from cluster.models import resolve_model
from cluster.tokenizer import load_vocabulary

KV_BYTES = 1 << 30
SETTINGS = {"without": False, "with": True}


class LocalLLM:
    """The ranks' port, with the only rank in a thread of this process."""

    def __init__(self, rank: Rank, thread: ThreadPoolExecutor) -> None:
        self._rank = rank
        self._thread = thread

    async def describe(self) -> LLMDescription:
        return self._rank.describe()

    async def step(self, message: StepMessage) -> StepReply:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._rank.step, message)

    async def lost(self) -> PeerError:
        await asyncio.Event().wait()
        raise AssertionError("nothing dies here")

    async def restore(self) -> None:
        """Nothing to do: whoever ends this process ends the rank."""


@dataclass
class Served:
    """What one setting made of all rounds.

    Attributes:
        first_token_s: of each request, from its submission.
        whole_s: of each round, from the first submission to the last token.
        texts: output tokens of each request.
        cached_tokens: prompt tokens of all requests that were not computed.
    """

    first_token_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    texts: list[tuple[int, ...]] = field(default_factory=list)
    cached_tokens: int = 0

    def summary(self) -> dict[str, float]:
        waits = sorted(self.first_token_s)
        return {
            "ttft_p50_ms": 1e3 * statistics.median(waits),
            "ttft_max_ms": 1e3 * waits[-1],
            "round_s": statistics.median(self.whole_s),
            "cached_tokens": self.cached_tokens,
        }


async def serve_round(
    engine: Engine, requests: Sequence[GenerationRequest], served: Served
) -> None:
    """All requests at once, to their ends."""
    since = time.monotonic()

    async def read(request: GenerationRequest) -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        async for event in engine.generate(request):
            if event.token_ids and not tokens:
                served.first_token_s.append(time.monotonic() - since)
            tokens += event.token_ids
            if event.stats is not None:
                served.cached_tokens += event.stats.num_cached_tokens
        return tokens

    served.texts += await asyncio.gather(*map(read, requests))
    served.whole_s.append(time.monotonic() - since)


async def compare(
    config: Config, path: Path, loaded: LoadedModel, rounds: Sequence[Sequence[GenerationRequest]]
) -> dict[str, Served]:
    """Every round by both settings, each with an engine and a KV cache of its own."""
    served = {name: Served() for name in SETTINGS}
    async with AsyncExitStack() as resources:
        thread = resources.enter_context(ThreadPoolExecutor(1))
        engines = {}
        for name, reuse in SETTINGS.items():
            engines[name] = await _engine(config, path, loaded, thread, reuse=reuse)
            await engines[name].start()
            resources.push_async_callback(engines[name].stop)
            await serve_round(engines[name], rounds[0][:1], Served())  # the first step is slow
        for turn, requests in enumerate(rounds[1:]):
            for name in list(SETTINGS)[:: -1 if turn % 2 else 1]:
                await serve_round(engines[name], requests, served[name])
    return served


async def _engine(
    config: Config, path: Path, loaded: LoadedModel, thread: ThreadPoolExecutor, *, reuse: bool
) -> Engine:
    llm = local_llm(config, loaded, thread, KV_BYTES)
    return Engine(
        llm,
        await llm.describe(),
        load_vocabulary(path),
        config.speculation.model_copy(update={"drafters": ()}),
        config.scheduler.model_copy(update={"kv_prefix_reuse": reuse}),
        [],
        Metrics(CollectorRegistry(), config.model.name),
    )


def local_llm(
    config: Config, loaded: LoadedModel, thread: ThreadPoolExecutor, kv_bytes: int
) -> LocalLLM:
    """A loaded model as one rank, with a KV cache of its own of so many bytes."""
    block_tokens = config.scheduler.kv_block_tokens
    num_blocks = num_blocks_for(
        loaded.model.kv_shape,
        block_tokens,
        loaded.dtype,
        loaded.device,
        kv_bytes,
        loaded.max_context_tokens,
    )
    return LocalLLM(Rank(loaded, config.model.name, num_blocks, block_tokens), thread)


def make_requests(
    num_rounds: int, num_requests: int, num_shared: int, max_tokens: int, vocab_size: int
) -> list[list[GenerationRequest]]:
    """For each round requests with random first tokens in common and a last one of their own."""
    chance = random.Random(0)
    rounds = []
    for turn in range(num_rounds):
        shared = [chance.randrange(vocab_size) for _ in range(num_shared)]
        rounds.append(
            [
                GenerationRequest(
                    f"{turn}-{place}",
                    (*shared, place),
                    SamplingParams(temperature=place % 2, seed=place),
                    StopConditions(max_tokens, ignore_eos=True),
                )
                for place in range(num_requests)
            ]
        )
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.bench.prefixes", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--shared-tokens", type=int, default=600)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    path = resolve_model(config.model.path)
    loaded = load_model(path, DTYPES[config.model.dtype], torch.device("cpu"))
    rounds = make_requests(
        arguments.rounds + 1,
        arguments.requests,
        arguments.shared_tokens,
        arguments.max_tokens,
        loaded.model.vocab_size,
    )
    served = asyncio.run(compare(config, path, loaded, rounds))
    report = {name: result.summary() for name, result in served.items()}
    is_equal = served["without"].texts == served["with"].texts
    print(f"{'reuse':>10}" + "".join(f"{column:>16}" for column in report["with"]))
    for name, figures in report.items():
        print(f"{name:>10}" + "".join(f"{value:16.1f}" for value in figures.values()))
    print(json.dumps({**report, "texts_are_equal": is_equal}))
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
