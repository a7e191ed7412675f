"""Steps of one rank, timed without a manager: requests with their contexts, trees below them."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from actors.errors import ConfigError
from actors.llm.config import LLMConfig, Quantization
from actors.llm.loading import DTYPES
from actors.llm.rank import Rank, RankOptions
from actors.messages import KVCommit, NewRequest, Row, StepMessage
from actors.sampling import SamplingParams
from actors.tree import TokenTree


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """What the rank is like that is to be measured."""
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--quantization", choices=get_args(Quantization), default="none")
    parser.add_argument("--context", type=int, default=256)


def rank_options(path: Path, asked: argparse.Namespace) -> RankOptions:
    """Of the model in a folder, as `add_rank_options` has them asked for."""
    llm = LLMConfig(quantization=asked.quantization)
    return RankOptions(path, path.name, asked.dtype, llm=llm)


class StepSeconds(NamedTuple):
    """Of the whole step, and of the forward pass in it."""

    whole_s: float
    forward_s: float


class RankTimer:
    """Greedy steps on requests that stay as they are: nothing that a step draws is committed.

    Args:
        rank: a loaded one; nobody else may give it steps.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._block_tokens = rank.describe().kv_block_tokens
        self._num_blocks = rank.describe().num_kv_blocks
        self._next_step = 0
        self._next_block = 0
        self._starts: dict[int, int] = {}
        self._commits: list[KVCommit] = []

    def prefill(self, contexts: Mapping[int, Sequence[int]], room: int) -> None:
        """Give requests, by number, KV of their own for all but the last token of their contexts.

        Args:
            room: nodes of the largest tree that will hang below one of them, the root included.

        Raises:
            ConfigError: the KV cache is too small.
        """
        for request_id, context in contexts.items():
            start = len(context) - 1
            row = Row(
                request_id, 0, TokenTree.chain(context[:-1]), self._grant(start + room), start
            )
            new = NewRequest(request_id, len(context), SamplingParams(temperature=0.0))
            self._step(new=(new,), rows=(row,))
            self._starts[request_id] = start
            self._commits.append(KVCommit(request_id, tuple(range(start))))

    def seconds(self, trees: Mapping[int, TokenTree]) -> StepSeconds:
        """One step with a tree for each of some requests; node 0 is its context's last token."""
        rows = [Row(number, self._starts[number], tree) for number, tree in trees.items()]
        return self._step(rows=tuple(rows))

    def _step(self, new: tuple[NewRequest, ...] = (), rows: tuple[Row, ...] = ()) -> StepSeconds:
        commits, self._commits = tuple(self._commits), []
        message = StepMessage(0, self._next_step, commits=commits, new=new, rows=rows)
        self._next_step += 1
        since = time.perf_counter()
        reply = self._rank.step(message)
        return StepSeconds(time.perf_counter() - since, reply.forward_s)

    def _grant(self, num_tokens: int) -> tuple[int, ...]:
        first, self._next_block = (
            self._next_block,
            self._next_block - num_tokens // -self._block_tokens,
        )
        if self._next_block > self._num_blocks:
            raise ConfigError(
                [f"{self._num_blocks} blocks of KV cache do not hold the contexts to measure with"]
            )
        return tuple(range(first, self._next_block))


def random_context(vocab_size: int, num_tokens: int, seed: int = 0) -> list[int]:
    """Token ids drawn evenly."""
    chance = random.Random(seed)
    return [chance.randrange(vocab_size) for _ in range(num_tokens)]
