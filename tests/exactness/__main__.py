"""Run the served model against the reference and against itself; exit with 1 if a promise breaks.

1. float32: with speculation on and off, alone and eight at once, greedy and with a seed, every
   answer is token for token what `transformers` gives, or the first difference lies at a near tie.
2. bfloat16: all four ways give the same answers, greedy and with a seed, where the server says that
   its rows do not depend on the batch.
3. Another seed gives another text, no seed a new text each time.

With `--split 3x2` all of it with an LLM of 3 shards x 2 stages; several splits are taken in turn.
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
from tests.exactness.reference import NEAR_TIE, Reference, StockReference, first_divergence

WAYS: dict[str, tuple[int, bool]] = {
    "alone, speculation off": (1, False),
    "alone, speculation on": (1, True),
    "eight at once, speculation off": (8, False),
    "eight at once, speculation on": (8, True),
}
FIRST_WAY = next(iter(WAYS))
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 7}
Split = tuple[int, int] | None
"""Shards and stages; None for the configuration's own."""
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


def run(arguments: argparse.Namespace, split: Split, folder: Path) -> dict[str, Any]:
    """Everything for one split; float32 alone if that is asked for."""
    prompts = load_prompts(arguments.prompts, arguments.per_task)
    some, max_tokens = prompts[: arguments.num_sampled], arguments.max_tokens
    report: dict[str, Any] = {"prompts": len(prompts), "max_tokens": max_tokens}
    with running_server(
        config_file(arguments.config, "float32", split, folder), folder / "server.log"
    ) as url:
        print("float32, greedy", flush=True)
        f32 = asyncio.run(ask_all(url, prompts, max_tokens, GREEDY))
        print("float32, temperature 1", flush=True)
        sampled = asyncio.run(ask_all(url, some, max_tokens, SAMPLED))
        report["seeds"] = check_seeds(url, some, max_tokens, sampled[FIRST_WAY])
    print("reference", flush=True)
    path = resolve_model(load_config(arguments.config).model.path)
    reference = StockReference(path, load_vocabulary(path).eos_ids)
    for name, answers, options in (("greedy", f32, GREEDY), ("sampled", sampled, SAMPLED)):
        references = [
            reference.generate(answer.prompt_token_ids, max_tokens, **options)
            for answer in answers[FIRST_WAY]
        ]
        report[f"float32_{name}"] = compare_with_reference(answers, references)
    if not arguments.float32_only:
        report |= check_bfloat16(arguments, split, folder, prompts, f32)
    return report


def check_bfloat16(
    arguments: argparse.Namespace,
    split: Split,
    folder: Path,
    prompts: Sequence[Prompt],
    f32: Answers,
) -> dict[str, Any]:
    """The four ways against each other."""
    max_tokens = arguments.max_tokens
    with running_server(
        config_file(arguments.config, "bfloat16", split, folder), folder / "server.log"
    ) as url:
        promised = httpx.get(f"{url}/v1/models").json()["data"][0]["batch_invariant"]
        print("bfloat16, greedy", flush=True)
        bf16 = asyncio.run(ask_all(url, prompts, max_tokens, GREEDY))
        print("bfloat16, temperature 1", flush=True)
        some = prompts[: arguments.num_sampled]
        sampled = asyncio.run(ask_all(url, some, max_tokens, SAMPLED))
    pairs = zip(f32[FIRST_WAY], bf16[FIRST_WAY], strict=True)
    same = sum(one.token_ids == other.token_ids for one, other in pairs)
    return {
        "batch_invariant": promised,
        "bfloat16_differs": compare_ways(bf16) + compare_ways(sampled),
        "bfloat16_equal_to_float32": f"{same}/{len(prompts)}",
    }


def check_seeds(
    url: str, prompts: Sequence[Prompt], max_tokens: int, seeded: Sequence[Answer]
) -> dict[str, bool]:
    """Whether texts agree that should not."""

    async def once(options: Mapping[str, Any]) -> list[Answer]:
        async with httpx.AsyncClient(base_url=url, timeout=600.0) as client:
            return [await stream_chat(client, p.text, max_tokens, options) for p in prompts[:8]]

    other = asyncio.run(once(SAMPLED | {"seed": SAMPLED["seed"] + 1}))
    unseeded = [asyncio.run(once({"temperature": 1.0})) for _ in range(2)]
    return {
        "seeds_agree": tokens(other) == tokens(seeded[:8]),
        "unseeded_agree": tokens(unseeded[0]) == tokens(unseeded[1]),
    }


def config_file(config: Path, dtype: str, split: Split, folder: Path) -> Path:
    """The configuration with another dtype, and with another split if there is one."""
    settings = yaml.safe_load(config.read_text()) or {}
    settings["model"] = {**(settings.get("model") or {}), "dtype": dtype}
    if split is not None:
        shards, stages = split
        parallel = {"tensor_parallel": shards, "pipeline_parallel": stages}
        settings["llm"] = {**(settings.get("llm") or {}), **parallel}
    path = folder / f"{dtype}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def is_broken(report: Mapping[str, Any]) -> bool:
    """True if a promise does not hold."""
    compared = [report["float32_greedy"], report["float32_sampled"]]
    tokens_checked = sum(part["tokens"] for part in compared) * len(WAYS)
    num_ties = sum(len(part.get("near_ties", [])) for part in compared)
    return bool(
        any(part["broken"] for part in compared)
        or num_ties > max(1, tokens_checked // 5000)
        or (report.get("batch_invariant") and report["bfloat16_differs"])
        or any(report["seeds"].values())
    )


def parse_split(text: str) -> tuple[int, int]:
    """`3x2`: shards and stages."""
    shards, _, stages = text.partition("x")
    return int(shards), int(stages)


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
    parser.add_argument(
        "--split",
        type=parse_split,
        nargs="*",
        metavar="TPxPP",
        default=[None],
        help="tensor-parallel shards x pipeline stages; the configuration's own if not given",
    )
    parser.add_argument("--float32-only", action="store_true")
    arguments = parser.parse_args()
    reports = {}
    for split in arguments.split:
        name = "x".join(map(str, split)) if split else "as configured"
        print(f"split: {name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            reports[name] = run(arguments, split, Path(folder))
    print(json.dumps(reports))
    return 1 if any(map(is_broken, reports.values())) else 0


if __name__ == "__main__":
    sys.exit(main())
