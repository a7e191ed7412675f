"""What int8 weights bring and what they cost, beside the weights as they are stored, in one run.

    python -m cluster.bench.quantization CONFIG [--rounds N] [--prompts FILE] [--limit N]

First single steps: of both kinds of weights in one process, by turns. Then servers of the
configuration's own, one for each kind and round, by turns: every prompt is answered plainly and
with speculation, greedily. Last the quality, in one process: how likely both take the prompts'
own words to be, and how often they choose the same token after the same text, that of the answers
of the weights as they are stored. Prints tables, then one JSON line; the exit status is 1 unless
speculation left every text as it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from actors.llm.config import Quantization
from actors.llm.loading import LoadedModel
from actors.llm.rank import RankOptions, load_whole, make_rank
from actors.tree import TokenTree
from cluster.bench.modes import PLAIN, ModeResult, Workload, run_alone
from cluster.bench.prompts import SAMPLE, Prompt, load_prompts
from cluster.bench.rank_timer import RankTimer, random_context
from cluster.bench.scoring import Score, score
from cluster.bench.server import server_of
from cluster.config import Config, config_of, load_config
from cluster.generate_command import encode_prompt
from cluster.models import resolve_model
from cluster.tokenizer import load_tokenizer

KINDS = get_args(Quantization)
STORED = KINDS[0]
SPECULATION = "speculation"
MODES: Mapping[str, dict[str, Any]] = {PLAIN: {"enabled": False}, SPECULATION: {}}
NODES = (1, 16)
MAX_PROMPTS = 1000
FIELDS = ("ms_per_token", "tokens_per_step", "acceptance_rate", "llm_ms_per_step")


def with_quantization(config: Config, kind: str) -> Config:
    """The configuration with other weights, none of them streamed."""
    content = config.model_dump(mode="json")
    content["llm"] |= {"quantization": kind, "offload": "none", "offload_dir": None}
    return config_of(content)


def load_both(config: Config, folder: Path) -> dict[str, LoadedModel]:
    """The LLM with both kinds of weights, in this process."""
    if config.llm.num_threads is not None:
        torch.set_num_threads(config.llm.num_threads)
    return {
        kind: load_whole(
            RankOptions(
                folder, folder.name, config.model.dtype, llm=with_quantization(config, kind).llm
            )
        )
        for kind in KINDS
    }


def time_steps(
    models: Mapping[str, LoadedModel], num_context: int, num_rounds: int
) -> dict[str, dict[str, float]]:
    """Median milliseconds of steps of a chain of each number of nodes, and the bytes of weights."""
    context = random_context(next(iter(models.values())).model.vocab_size, num_context)
    timers = {}
    for kind, loaded in models.items():
        options = RankOptions(Path(), kind, kv_memory_bytes=1 << 28)
        timers[kind] = RankTimer(make_rank(loaded, options))
        timers[kind].prefill({0: context}, room=max(NODES))
    seconds: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for number in range(num_rounds + 1):
        for kind in _turned(KINDS, number):
            for nodes in NODES:
                chain = TokenTree.chain([context[-1], *context[: nodes - 1]])
                seconds[kind, nodes].append(timers[kind].seconds({0: chain}).whole_s)
    return {
        kind: {
            **{f"step_{n}_ms": 1e3 * statistics.median(seconds[kind, n][1:]) for n in NODES},
            "weight_mb": loaded.report.num_bytes / 1e6,
        }
        for kind, loaded in models.items()
    }


def serve(config: Config, workload: Workload, num_rounds: int) -> dict[str, dict[str, ModeResult]]:
    """All answers of each kind of weights in each mode; a server for each kind and round."""
    found = {kind: {mode: ModeResult(mode) for mode in MODES} for kind in KINDS}
    for number in range(num_rounds):
        for kind in _turned(KINDS, number):
            for mode, result in _round(with_quantization(config, kind), workload).items():
                for turn in zip(result.prompts, result.answers, result.counts, strict=True):
                    found[kind][mode].add(*turn)
    return found


def _round(config: Config, workload: Workload) -> dict[str, ModeResult]:
    with server_of(config) as url:
        return asyncio.run(run_alone(url, workload, MODES))


def _turned(kinds: Sequence[str], number: int) -> Sequence[str]:
    return kinds[:: -1 if number % 2 else 1]


@dataclass(frozen=True)
class Text:
    """A text to score.

    Attributes:
        token_ids: all of it.
        start: of the part that counts.
    """

    token_ids: Sequence[int]
    start: int


def compare(models: Mapping[str, LoadedModel], texts: Sequence[Text]) -> dict[str, float]:
    """The perplexity of texts under both, and the share of places where their best is the same."""
    scores = {
        kind: Score.joined([score(loaded, text.token_ids, text.start) for text in texts])
        for kind, loaded in models.items()
    }
    best, other = (one.best for one in scores.values())
    return {
        **{f"perplexity_{kind}": one.perplexity for kind, one in scores.items()},
        "equal_best": sum(a == b for a, b in zip(best, other, strict=True)) / len(best),
        "places": len(best),
    }


def texts_of(
    prompts: Sequence[Prompt], answers: ModeResult, folder: Path
) -> tuple[list[Text], list[Text]]:
    """The prompts alone, as their authors wrote them, and the answers to them."""
    tokenizer = load_tokenizer(folder).tokenizer
    written = [Text(tokenizer(prompt.text)["input_ids"], 1) for prompt in prompts]
    answered = []
    for prompt, answer in zip(prompts, answers.answers, strict=False):
        asked = encode_prompt(tokenizer, prompt.text)
        answered.append(Text([*asked, *answer.token_ids], len(asked)))
    return written, answered


def equal_texts(results: Mapping[str, ModeResult]) -> int:
    """How many answers were the same with speculation as plainly."""
    plain, speculated = (results[mode].answers for mode in MODES)
    return sum(a.token_ids == b.token_ids for a, b in zip(plain, speculated, strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cluster.bench.quantization", description=__doc__
    )
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--prompts", type=Path, default=SAMPLE, metavar="FILE")
    parser.add_argument("--limit", type=int, default=8, metavar="N", help="prompts at most")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="servers of each kind")
    parser.add_argument("--step-rounds", type=int, default=40, metavar="N")
    parser.add_argument("--context", type=int, default=256, metavar="N", help="of single steps")
    asked = parser.parse_args(argv)
    config = load_config(asked.config)
    prompts = load_prompts(asked.prompts, MAX_PROMPTS, asked.limit)
    folder = resolve_model(config.model.path)
    models = load_both(config, folder)
    report: dict[str, Any] = {"steps": time_steps(models, asked.context, asked.step_rounds)}
    _print_table(report["steps"])
    workload = Workload(prompts, asked.max_tokens, temperature=0.0)
    served = serve(config, workload, asked.rounds)
    modes = {
        f"{kind} {mode}": {name: summary[name] or 0.0 for name in FIELDS}
        for kind, results in served.items()
        for mode, result in results.items()
        for summary in [result.summary()]
    }
    _print_table(modes)
    written, answered = texts_of(prompts, served[STORED][PLAIN], folder)
    quality = {"prompts": compare(models, written), "answers": compare(models, answered)}
    _print_table(quality)
    equal = {kind: equal_texts(results) for kind, results in served.items()}
    num_texts = len(prompts) * asked.rounds
    report |= {"modes": modes, "quality": quality, "equal_texts": equal, "texts": num_texts}
    print(json.dumps(report))
    return 0 if all(count == num_texts for count in equal.values()) else 1


def _print_table(rows: Mapping[str, Mapping[str, float]]) -> None:
    columns = list(next(iter(rows.values())))
    print(" " * 18 + "".join(f"{column:>18}" for column in columns))
    for name, row in rows.items():
        print(f"{name:>18}" + "".join(f"{row[column]:18.3f}" for column in columns), flush=True)


if __name__ == "__main__":
    sys.exit(main())
