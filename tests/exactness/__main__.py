"""Run the served model against the reference and against itself; exit with 1 if a promise breaks.

1. float32: with speculation on and off, alone and eight at once, every answer is token for token
   what `transformers` gives, or the first difference lies at a near tie.
2. bfloat16: all four ways give the same answers.
3. Temperature 1: a seed gives the same text in all four ways, another seed another text, no seed a
   new text each time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from cluster.bench.client import Answer, stream_chat
from cluster.bench.prompts import Prompt, load_prompts
from cluster.bench.server import running_server
from cluster.config import load_config
from cluster.models import resolve_model
from cluster.tokenizer import load_vocabulary
from tests.exactness.reference import NEAR_TIE, GreedyReference, Reference, first_divergence

WAYS: dict[str, tuple[int, bool]] = {
    "alone, speculation off": (1, False),
    "alone, speculation on": (1, True),
    "eight at once, speculation off": (8, False),
    "eight at once, speculation on": (8, True),
}
Answers = dict[str, list[Answer]]
"""By way, in the order of the prompts."""


async def ask_all(
    url: str, prompts: Sequence[Prompt], max_tokens: int, options: Mapping[str, Any]
) -> Answers:
    """Every prompt in all four ways."""
    answers: Answers = {}
    async with httpx.AsyncClient(base_url=url, timeout=600.0) as client:
        for way, (width, speculate) in WAYS.items():
            gate = asyncio.Semaphore(width)
            asked = {**options, "speculation": {"enabled": speculate}}

            async def ask(prompt: Prompt, gate=gate, asked=asked) -> Answer:
                async with gate:
                    return await stream_chat(client, prompt.text, max_tokens, asked)

            answers[way] = await asyncio.gather(*map(ask, prompts))
            print(f"  {way}: {sum(len(a.token_ids) for a in answers[way])} tokens", flush=True)
    return answers


def compare_with_reference(answers: Answers, references: Sequence[Reference]) -> dict[str, Any]:
    """How many answers are the reference's own, and where the others part from it."""
    report: dict[str, Any] = {"tokens": sum(len(r.token_ids) for r in references), "broken": []}
    for way, given in answers.items():
        identical = 0
        for index, (answer, reference) in enumerate(zip(given, references, strict=True)):
            at = first_divergence(reference, answer.token_ids)
            identical += at is None
            if at is not None:
                gap = reference.gaps[at] if at < len(reference.gaps) else float("inf")
                print(f"  {way}: prompt {index} parts at token {at}, gap {gap:.2e}", flush=True)
                report.setdefault("near_ties" if gap < NEAR_TIE else "broken", []).append(
                    {"way": way, "prompt": index, "token": at, "gap": gap}
                )
        report[way] = f"{identical}/{len(references)}"
    return report


def compare_ways(answers: Answers) -> list[str]:
    """Prompts whose answer is not the same in every way."""
    first, *others = WAYS
    return [
        f"prompt {index}: {way}"
        for way in others
        for index, (ours, theirs) in enumerate(zip(answers[first], answers[way], strict=True))
        if ours.token_ids != theirs.token_ids
    ]


def tokens(answers: Sequence[Answer]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    prompts = load_prompts(arguments.prompts, arguments.per_task)
    report: dict[str, Any] = {"prompts": len(prompts), "max_tokens": arguments.max_tokens}
    greedy = {"temperature": 0.0}
    with running_server(
        config_file(arguments.config, "float32", folder), folder / "f32.log"
    ) as url:
        print("float32, greedy", flush=True)
        f32 = asyncio.run(ask_all(url, prompts, arguments.max_tokens, greedy))
        print("float32, temperature 1", flush=True)
        some = prompts[: arguments.num_sampled]
        report["seeds_float32"] = check_seeds(url, some, arguments.max_tokens)
    with running_server(
        config_file(arguments.config, "bfloat16", folder), folder / "bf16.log"
    ) as url:
        print("bfloat16, greedy", flush=True)
        bf16 = asyncio.run(ask_all(url, prompts, arguments.max_tokens, greedy))
        print("bfloat16, temperature 1", flush=True)
        report["seeds_bfloat16"] = check_seeds(url, some, arguments.max_tokens)
    print("reference", flush=True)
    path = resolve_model(load_config(arguments.config).model.path)
    reference = GreedyReference(path, load_vocabulary(path).eos_ids)
    off = "alone, speculation off"
    references = [reference.generate(a.prompt_token_ids, arguments.max_tokens) for a in f32[off]]
    report["float32"] = compare_with_reference(f32, references)
    report["bfloat16_differs"] = compare_ways(bf16)
    same = sum(a.token_ids == b.token_ids for a, b in zip(f32[off], bf16[off], strict=True))
    report["bfloat16_equal_to_float32"] = f"{same}/{len(prompts)}"
    return report


def check_seeds(url: str, prompts: Sequence[Prompt], max_tokens: int) -> dict[str, Any]:
    """What differs and should not, and what should and does not."""
    sampled = asyncio.run(ask_all(url, prompts, max_tokens, {"temperature": 1.0, "seed": 7}))
    off = "alone, speculation off"

    async def once(options: Mapping[str, Any]) -> list[Answer]:
        async with httpx.AsyncClient(base_url=url, timeout=600.0) as client:
            return [await stream_chat(client, p.text, max_tokens, options) for p in prompts[:8]]

    other = asyncio.run(once({"temperature": 1.0, "seed": 8}))
    unseeded = [asyncio.run(once({"temperature": 1.0})) for _ in range(2)]
    return {
        "differs": compare_ways(sampled),
        "seeds_agree": tokens(other) == tokens(sampled[off][:8]),
        "unseeded_agree": tokens(unseeded[0]) == tokens(unseeded[1]),
    }


def config_file(config: Path, dtype: str, folder: Path) -> Path:
    """The configuration with another dtype."""
    settings = yaml.safe_load(config.read_text()) or {}
    settings["model"] = {**(settings.get("model") or {}), "dtype": dtype}
    path = folder / f"{dtype}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def is_broken(report: Mapping[str, Any]) -> bool:
    """True if a promise does not hold."""
    float32 = report["float32"]
    tokens_checked = float32["tokens"] * len(WAYS)
    too_many_ties = len(float32.get("near_ties", [])) > max(1, tokens_checked // 5000)
    seeds = [report["seeds_float32"], report["seeds_bfloat16"]]
    return bool(
        float32["broken"]
        or too_many_ties
        or report["bfloat16_differs"]
        or any(s["differs"] or s["seeds_agree"] or s["unseeded_agree"] for s in seeds)
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.exactness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompts", type=Path, help="JSON lines with turns or prompt, and task")
    parser.add_argument("--config", type=Path, default=Path("deploy/configs/smollm2.yaml"))
    parser.add_argument("--per-task", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--num-sampled", type=int, default=40, help="prompts at temperature 1")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(arguments, Path(folder))
    print(json.dumps(report))
    return 1 if is_broken(report) else 0


if __name__ == "__main__":
    sys.exit(main())
