"""Single steps of one rank beside the floor and beside transformers' own decoding, in one process.

`python -m cluster.bench.steps FOLDER` prints one JSON line. Steps are greedy, on a context of
random tokens; a step of n nodes is a chain of n. Everything is measured in turn, round after round,
and medians are given: a machine's speed drifts, ratios within a run hold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from actors.llm.floor import Floor
from actors.llm.fused_llama import as_they_are
from actors.llm.loading import DTYPES
from actors.llm.quantization import Int8
from actors.llm.rank import RankOptions, load_rank
from actors.tree import TokenTree
from cluster.bench.rank_timer import RankTimer, add_rank_options, random_context, rank_options

NODES = (1, 4, 8, 16, 32)


class TransformersTimer:
    """Decoding as `generate` does it: the stock model, its own attention and cache."""

    def __init__(self, path: Path, dtype: torch.dtype, context: list[int]) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
        self._cache = DynamicCache()
        self._root = torch.tensor([context[-1:]])
        self._forward(torch.tensor([context[:-1]]))

    def seconds(self) -> float:
        """One token; the context is as long before as after."""
        since = time.perf_counter()
        self._forward(self._root)
        passed = time.perf_counter() - since
        self._cache.crop(-1)
        return passed

    @torch.inference_mode()
    def _forward(self, token_ids: torch.Tensor) -> None:
        self._model(token_ids, cache=self._cache, use_cache=True, logits_to_keep=1)


def measure(options: RankOptions, num_context: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of everything; transformers' decoding is never quantised."""
    path, dtype = options.path, DTYPES[options.dtype]
    rank = load_rank(options)
    context = random_context(rank.describe().vocab_size, num_context)
    ours = RankTimer(rank)
    ours.prefill({0: context}, room=max(NODES))
    theirs = TransformersTimer(path, dtype, context)
    floor = Floor(path, dtype, Int8() if options.llm.quantization == "int8" else as_they_are)
    measured: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        measured["transformers_1_ms"].append(theirs.seconds() * 1e3)
        for num_nodes in NODES:
            chain = TokenTree.chain([context[-1], *range(100, 99 + num_nodes)])
            step = ours.seconds({0: chain})
            measured[f"step_{num_nodes}_ms"].append(step.whole_s * 1e3)
            measured[f"forward_{num_nodes}_ms"].append(step.forward_s * 1e3)
            measured[f"floor_{num_nodes}_ms"].append(floor.seconds(num_nodes) * 1e3)
    result = {name: statistics.median(values[1:]) for name, values in measured.items()}
    result["step_1_to_transformers"] = result["step_1_ms"] / result["transformers_1_ms"]
    result["step_16_to_floor"] = result["step_16_ms"] / result["floor_16_ms"]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.bench.steps", description=__doc__)
    parser.add_argument("path", type=Path, help="the model's folder")
    add_rank_options(parser)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    options = rank_options(arguments.path, arguments)
    print(json.dumps(measure(options, arguments.context, arguments.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
