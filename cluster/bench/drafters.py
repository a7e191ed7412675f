"""Drafters without a model against each other: the same prompts, and nothing learnt across arms.

    python -m cluster.bench.drafters CONFIG --prompts FILE [--arms …] [--per-task 10] [--limit N]
                                     [--max-tokens 64] [--temperature 0]

Some drafters learn from every answer. On one server an arm that asks what another has asked before
would find the answer known, so that here each arm has an engine, a KV cache and drafters of its
own, over one model in this process, without Ray, gRPC and HTTP. Every prompt is asked once in every
arm, one at a time; the arms take turns to be first. Arms that share earlier answers are as good as
these prompts are alike, so their order counts: tasks take turns. Draft models, which live in
processes of their own, are left out: `treeserve bench` has them.

Prints tokens per step and milliseconds per token by task, then one JSON line; the exit status is 1
if an arm's text is not that of plain decoding where the model promises that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from prometheus_client import CollectorRegistry

from actors.errors import TreeServeError
from actors.llm.loading import DTYPES, LoadedModel, load_model
from actors.request_manager.drafters import DRAFTERS
from actors.request_manager.engine import Engine
from actors.request_manager.generation import GenerationRequest, SpeculationStats, StopConditions
from actors.sampling import SamplingParams
from cluster.bench.prefixes import local_llm
from cluster.bench.prompts import SAMPLE, load_prompts
from cluster.config import Config, load_config
from cluster.generate_command import encode_prompt
from cluster.metrics import Metrics
from cluster.models import resolve_model
from cluster.observed import ObservedDrafter
from cluster.tokenizer import load_encoder, load_tokenizer

PLAIN, ALL_TASKS = "plain", "all"
ARMS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"drafters": ()},
    "prompt_lookup": {"drafters": ("prompt_lookup",)},
    "suffix_own": {"drafters": ("suffix",), "suffix_global": False},
    "suffix": {"drafters": ("suffix",)},
    "ngram": {"drafters": ("ngram",)},
    "merged": {"drafters": ("suffix", "ngram")},
}
"""What each arm changes of the configuration's `speculation`."""
KV_BYTES = 1 << 28


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


async def serve(engine: Engine, asked: Asked) -> Served:
    """One request to its end."""
    tokens: tuple[int, ...] = ()
    stats, first_s, last_s = SpeculationStats(), 0.0, 0.0
    async for event in engine.generate(asked.request):
        if event.token_ids:
            last_s = time.monotonic()
            first_s = first_s or last_s
            tokens += event.token_ids
        stats = event.stats or stats
    return Served(asked.task, tokens, last_s - first_s, stats)


def summary(served: Sequence[Served]) -> dict[str, dict[str, float]]:
    """Figures by task, and over all: ratios of sums."""
    by_task: defaultdict[str, list[Served]] = defaultdict(list)
    for one in served:
        if one.stats.num_llm_steps:
            by_task[ALL_TASKS].append(one)
            by_task[one.task].append(one)
    return {task: _figures(answers) for task, answers in by_task.items()}


def _figures(answers: Sequence[Served]) -> dict[str, float]:
    steps = sum(one.stats.num_llm_steps for one in answers)
    tokens = sum(len(one.token_ids) - 1 for one in answers)
    return {
        "tokens_per_step": tokens / steps,
        "ms_per_token": 1e3 * sum(one.decode_s for one in answers) / tokens,
        "nodes_per_step": sum(one.stats.num_draft_tokens for one in answers) / steps,
        "draft_ms_per_step": 1e3 * sum(one.stats.draft_s for one in answers) / steps,
        "llm_ms_per_step": 1e3 * sum(one.stats.step_s for one in answers) / steps,
    }


async def compare(
    config: Config, path: Path, loaded: LoadedModel, prompts: Sequence[Asked], arms: Sequence[str]
) -> tuple[dict[str, list[Served]], bool]:
    """Every prompt in every arm; and whether the texts have to be the same."""
    served: dict[str, list[Served]] = {arm: [] for arm in arms}
    async with AsyncExitStack() as resources:
        thread = resources.enter_context(ThreadPoolExecutor(1))
        engines = {arm: await _engine(config, path, loaded, thread, ARMS[arm]) for arm in arms}
        for engine in engines.values():
            await engine.start()
            resources.push_async_callback(engine.stop)
        for turn, asked in enumerate(prompts):
            shift = turn % len(arms)
            for arm in (*arms[shift:], *arms[:shift]):
                served[arm].append(await serve(engines[arm], asked))
        is_invariant = all(one.description.batch_invariant for one in engines.values())
    return served, is_invariant


async def _engine(
    config: Config,
    path: Path,
    loaded: LoadedModel,
    thread: ThreadPoolExecutor,
    changes: Mapping[str, Any],
) -> Engine:
    llm = local_llm(config, loaded, thread, KV_BYTES)
    speculation = config.speculation.model_copy(update=dict(changes))
    vocabulary = load_tokenizer(path).vocabulary
    language = (vocabulary, load_encoder(path, vocabulary))
    metrics = Metrics(CollectorRegistry(), config.model.name, speculation.drafters)
    return Engine(
        llm,
        await llm.describe(),
        vocabulary,
        speculation,
        config.scheduler,
        [
            ObservedDrafter(DRAFTERS[name](speculation, *language), metrics)
            for name in speculation.drafters
        ],
        metrics,
    )


def _load_prompts(arguments: argparse.Namespace, path: Path) -> list[Asked]:
    tokenizer = load_tokenizer(path).tokenizer
    prompts = load_prompts(arguments.prompts, arguments.per_task, arguments.limit)
    return [
        Asked(
            prompt.task,
            GenerationRequest(
                str(turn),
                encode_prompt(tokenizer, prompt.text),
                SamplingParams(temperature=arguments.temperature, seed=turn),
                StopConditions(arguments.max_tokens),
            ),
        )
        for turn, prompt in enumerate(prompts)
    ]


def _print_table(report: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    for figure in ("tokens_per_step", "ms_per_token"):
        print(f"\n{figure:>24}" + "".join(f"{arm:>15}" for arm in report))
        for task in next(iter(report.values())):
            cells = (arm[task][figure] if task in arm else float("nan") for arm in report.values())
            print(f"{task:>24}" + "".join(f"{cell:15.2f}" for cell in cells))
    print("\nover all tasks")
    for arm, tasks in report.items():
        print(f"{arm:>24} " + "  ".join(f"{k} {v:.2f}" for k, v in tasks[ALL_TASKS].items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.bench.drafters", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--prompts", type=Path, default=SAMPLE)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--per-task", type=int, default=10)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = parser.parse_args()
    try:
        config = load_config(arguments.config)
        path = resolve_model(config.model.path)
        prompts = _load_prompts(arguments, path)
    except TreeServeError as error:
        parser.error(str(error))
    arms = list(dict.fromkeys((PLAIN, *arguments.arms)))
    loaded = load_model(path, DTYPES[config.model.dtype], torch.device("cpu"))
    served, is_invariant = asyncio.run(compare(config, path, loaded, prompts, arms))
    report = {arm: summary(answers) for arm, answers in served.items()}
    _print_table(report)
    texts = {arm: [one.token_ids for one in answers] for arm, answers in served.items()}
    num_equal = {
        arm: sum(a == b for a, b in zip(answers, texts[PLAIN], strict=True))
        for arm, answers in texts.items()
    }
    print(json.dumps({"arms": report, "texts": len(prompts), "equal_texts": num_equal}))
    return 0 if not is_invariant or set(num_equal.values()) == {len(prompts)} else 1


if __name__ == "__main__":
    sys.exit(main())
