"""Drafters without a model against each other: the same prompts, and nothing learnt across arms.

    python -m cluster.bench.drafters CONFIG --prompts FILE [--arms …] [--per-task 10] [--limit N]
                                     [--max-tokens 64] [--temperature 0]

Some drafters learn from every answer. On one server an arm that asks what another has asked before
would find the answer known, so that here each arm has an engine, a KV cache and drafters of its
own, over one model in this process, without Ray, gRPC and HTTP. Every prompt is asked once in every
arm, one at a time; the arms take turns to be first. Arms that share earlier answers are as good as
these prompts are alike, so their order counts: tasks take turns. Draft models are
left out: `treeserve bench` and `cluster.bench.results` have them.

Prints tokens per step and milliseconds per token by task, then one JSON line; the exit status is 1
if an arm's text is not that of plain decoding where the model promises that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from actors.errors import TreeServeError
from actors.request_manager.generation import GenerationRequest, StopConditions
from actors.sampling import SamplingParams
from cluster.bench.lab import Lab
from cluster.bench.prompts import SAMPLE, load_prompts
from cluster.bench.served import ALL_TASKS, Arm, Asked, Served, serve_in_turns, summary
from cluster.config import Config, load_config
from cluster.generate_command import encode_prompt
from cluster.models import resolve_model
from cluster.tokenizer import load_tokenizer

PLAIN = "plain"
ARMS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"drafters": ()},
    "prompt_lookup": {"drafters": ("prompt_lookup",)},
    "suffix_own": {"drafters": ("suffix",), "suffix_global": False},
    "suffix": {"drafters": ("suffix",)},
    "ngram": {"drafters": ("ngram",)},
    "merged": {"drafters": ("suffix", "ngram")},
}
"""What each arm changes of the configuration's `speculation`."""


async def compare(
    config: Config, lab: Lab, prompts: Sequence[Asked], arms: Sequence[str]
) -> tuple[dict[str, list[Served]], bool]:
    """Every prompt in every arm; and whether the texts have to be the same."""
    async with AsyncExitStack() as resources:
        engines = {
            arm: await resources.enter_async_context(
                lab.engine(config.speculation.model_copy(update=dict(ARMS[arm])))
            )
            for arm in arms
        }
        served = await serve_in_turns({arm: Arm(one) for arm, one in engines.items()}, prompts)
        is_invariant = all(one.description.batch_invariant for one in engines.values())
    return served, is_invariant


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
    lab = Lab.load(config, path)
    served, is_invariant = asyncio.run(compare(config, lab, prompts, arms))
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
