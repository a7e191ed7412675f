"""What trees bring where every pass streams the LLM's weights, by the size of the trees.

    python -m cluster.bench.offload CONFIG [--offload cpu nvme] [--nodes 16 64 256] [--prompts FILE]

Under each kind of offload a server of its own answers every prompt plainly and with trees of up to
so many nodes, all that the drafters bring; then another one does so plainly and with trees as its
budget sizes them. Modes take turns to be first, and what one was answered helps no other: `suffix`
has a request's own text alone, `ngram` is left out. Prints a table, then one JSON line; the exit
status is 1 unless every mode gave the same text and weights were streamed.

`pays_beyond_ms` tells where trees of a size pay against those of the size before: if a pass took so
much longer, by slower weights and not by its nodes, both would give tokens at one rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actors.request_manager.drafter_names import NGRAM
from cluster.bench.modes import PLAIN, ModeResult, Workload, run_alone
from cluster.bench.prompts import SAMPLE, load_prompts
from cluster.bench.server import server_of
from cluster.config import Config, config_of, load_config

KINDS = ("cpu", "nvme")
BUDGET = "budget"
MAX_PROMPTS = 1000
COLUMNS = (
    "ms_per_token",
    "mb_per_token",
    "tokens_per_step",
    "draft_nodes_per_step",
    "llm_ms_per_step",
    "faster",
    "fewer_bytes",
    "pays_beyond_ms",
)


def with_offload(config: Config, kind: str, budget: str, max_nodes: int) -> Config:
    """The configuration with another offload, and drafters that may fill such trees."""
    content = config.model_dump(mode="json")
    content["llm"]["offload"] = kind
    if kind != "nvme":
        content["llm"]["offload_dir"] = None
    content["speculation"] |= {
        "budget": budget,
        "max_tree_nodes": max_nodes,
        "drafters": [name for name in config.speculation.drafters if name != NGRAM],
        "suffix_global": False,
    }
    for ssm in content["ssms"]:
        ssm["max_nodes"] = min(max_nodes, 256)
    return config_of(content)


def modes_for(nodes: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Plain decoding, and trees of each size."""
    return {PLAIN: {"enabled": False}, **{str(size): {"max_nodes": size} for size in nodes}}


def measure(config: Config, workload: Workload, modes: Mapping[str, Any]) -> dict[str, ModeResult]:
    """Every prompt in every mode by a server of its own."""
    with server_of(config) as url:
        return asyncio.run(run_alone(url, workload, modes))


def summarise(results: Mapping[str, ModeResult]) -> dict[str, dict[str, float | None]]:
    """The figures of each mode, and how it compares with plain decoding on the same server."""
    figures = {mode: _figures(result) for mode, result in results.items()}
    plain = before = figures[PLAIN]
    for mode in figures.values():
        mode["pays_beyond_ms"] = _break_even(before, mode)
        before = mode
        mode["faster"] = _ratio(plain["ms_per_token"], mode["ms_per_token"])
        mode["fewer_bytes"] = _ratio(plain["mb_per_token"], mode["mb_per_token"])
    return figures


def _figures(result: ModeResult) -> dict[str, float | None]:
    """Sums over all prompts; bytes with those of the prompts' own passes."""
    num_tokens = sum(len(answer.token_ids) for answer in result.answers)
    streamed = sum(counts.total("treeserve_offload_bytes_total") for counts in result.counts)
    decoded = sum(answer.num_decoded for answer in result.answers)
    return result.summary() | {
        "ms_per_token": 1e3 * sum(answer.decode_s for answer in result.answers) / max(1, decoded),
        "mb_per_token": streamed / 1e6 / num_tokens,
    }


def _break_even(
    small: Mapping[str, float | None], large: Mapping[str, float | None]
) -> float | None:
    """Milliseconds S that a pass must take beyond what it took, for the larger trees to pay.

    With t milliseconds and n tokens a token's time is (t + S) / n in a mode. None: no S will do.
    """
    few, many = small["tokens_per_step"], large["tokens_per_step"]
    if not few or not many or many <= few:
        return None
    by_small, by_large = (few * (small["ms_per_token"] or 0), many * (large["ms_per_token"] or 0))
    return max(0.0, (few * by_large - many * by_small) / (many - few))


def _ratio(plain: float | None, other: float | None) -> float | None:
    return plain / other if plain and other else None


def equal_texts(results: Sequence[ModeResult]) -> int:
    """How many prompts were answered alike by all."""
    by_prompt = zip(*([answer.token_ids for answer in one.answers] for one in results), strict=True)
    return sum(all(text == first for text in texts) for first, *texts in by_prompt)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.bench.offload", description=__doc__)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--offload", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 64, 256], metavar="N")
    parser.add_argument("--prompts", type=Path, default=SAMPLE, metavar="FILE")
    parser.add_argument("--limit", type=int, default=6, metavar="N", help="prompts at most")
    parser.add_argument("--max-tokens", type=int, default=48, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T")
    arguments = parser.parse_args(argv)
    config = load_config(arguments.config)
    prompts = load_prompts(arguments.prompts, MAX_PROMPTS, arguments.limit)
    # One seed for all modes, for their texts must be the same.
    workload = Workload(prompts, arguments.max_tokens, arguments.temperature, more={"seed": 0})
    largest = max(arguments.nodes)
    by_budget = {"fixed": modes_for(arguments.nodes), "adaptive": {PLAIN: {"enabled": False}}}
    by_budget["adaptive"][BUDGET] = {}
    rows: dict[str, dict[str, float | None]] = {}
    results: list[ModeResult] = []
    print(f"{'offload, budget, nodes':>24}" + "".join(f"{column:>22}" for column in COLUMNS))
    for kind in arguments.offload:
        for budget, modes in by_budget.items():
            found = measure(with_offload(config, kind, budget, largest), workload, modes)
            results += found.values()
            for mode, row in summarise(found).items():
                name = f"{kind} {budget} {mode}"
                rows[name] = row
                cells = (row[column] or 0.0 for column in COLUMNS)
                print(f"{name:>24}" + "".join(f"{cell:22.2f}" for cell in cells), flush=True)
    report = {"rows": rows, "prompts": len(prompts), "equal": equal_texts(results)}
    print(json.dumps(report))
    is_good = report["equal"] == len(prompts) and all(row["mb_per_token"] for row in rows.values())
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
