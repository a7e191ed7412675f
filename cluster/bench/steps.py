"""Single steps of one rank beside the floor and beside transformers' own decoding, in one process.

`python -m cluster.bench.steps FOLDER` prints one JSON line. Steps are greedy, on a context of
random tokens; a step of n nodes is a chain of n. Everything is measured in turn, round after round,
and medians are given: a machine's speed drifts, ratios within a run hold.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from actors.llm.floor import Floor
from actors.llm.loading import DTYPES
from actors.llm.rank import Rank, RankOptions, load_rank
from actors.messages import KVCommit, NewRequest, Row, StepMessage
from actors.sampling import SamplingParams
from actors.tree import TokenTree

NODES = (1, 4, 8, 16, 32)
BLOCK_TOKENS = 16


class StepTimer:
    """Steps of any number of nodes on one request's context.

    Args:
        rank: a loaded one.
        context: its tokens; all but the last are prefilled.
    """

    def __init__(self, rank: Rank, context: list[int]) -> None:
        self._rank = rank
        self._root = context[-1]
        self._start = len(context) - 1
        self._next_step = 1
        num_blocks = -(-(len(context) + max(NODES)) // BLOCK_TOKENS)
        new = NewRequest(0, len(context), SamplingParams(temperature=0.0))
        prefill = Row(0, 0, TokenTree.chain(context[:-1]), tuple(range(num_blocks)), self._start)
        rank.step(StepMessage(0, 0, new=(new,), rows=(prefill,)))
        self._commits: tuple[KVCommit, ...] = (KVCommit(0, tuple(range(self._start))),)

    def seconds(self, num_nodes: int) -> tuple[float, float]:
        """One step: seconds of the whole, and of the forward pass in it."""
        tree = TokenTree.chain([self._root, *range(100, 99 + num_nodes)])
        message = StepMessage(
            0, self._next_step, commits=self._commits, rows=(Row(0, self._start, tree),)
        )
        self._commits = ()
        self._next_step += 1
        since = time.perf_counter()
        reply = self._rank.step(message)
        return time.perf_counter() - since, reply.forward_s


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


def measure(path: Path, dtype: str, num_context: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of everything."""
    rank = load_rank(RankOptions(path, path.name, dtype, kv_block_tokens=BLOCK_TOKENS))
    chance = random.Random(0)
    context = [chance.randrange(rank.describe().vocab_size) for _ in range(num_context)]
    ours = StepTimer(rank, context)
    theirs = TransformersTimer(path, DTYPES[dtype], context)
    floor = Floor(path, DTYPES[dtype])
    measured: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        measured["transformers_1_ms"].append(theirs.seconds() * 1e3)
        for num_nodes in NODES:
            whole, forward = ours.seconds(num_nodes)
            measured[f"step_{num_nodes}_ms"].append(whole * 1e3)
            measured[f"forward_{num_nodes}_ms"].append(forward * 1e3)
            measured[f"floor_{num_nodes}_ms"].append(floor.seconds(num_nodes) * 1e3)
    result = {name: statistics.median(values[1:]) for name, values in measured.items()}
    result["step_1_to_transformers"] = result["step_1_ms"] / result["transformers_1_ms"]
    result["step_16_to_floor"] = result["step_16_ms"] / result["floor_16_ms"]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.bench.steps", description=__doc__)
    parser.add_argument("path", type=Path, help="the model's folder")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.path, arguments.dtype, arguments.context, arguments.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
