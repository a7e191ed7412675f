"""Verifying token trees as trees, and as the sequences that they stand for, by batch size.

The comparison of SpecInfer (ASPLOS 2024), figure 11. `python -m cluster.bench.verification FOLDER`
prints one JSON line. Both ways verify the same drafts in one step of one rank. As a tree, a request
has one row, and shared prefixes are run once. As sequences, each path from the root to a leaf is a
request of its own, as in a system without tree attention: it has its own KV slots for the whole
context, and runs root and drafts of its path alone. Contexts and drafts are random tokens; nothing
is drawn that matters. The two ways take turns, plain steps between them, and medians are given.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from actors.llm.rank import RankOptions, load_rank
from actors.tree import TokenTree
from cluster.bench.rank_timer import RankTimer, add_rank_options, random_context, rank_options

Figures = dict[str, float]


def paths_of(root: int, widths: Sequence[int]) -> list[list[int]]:
    """The paths of a static tree from the root to its leaves, the root first.

    Tokens are the child's number among its siblings: which they are does not matter here.
    """
    return [[root, *path] for path in itertools.product(*map(range, widths))]


class Verification:
    """One rank with the requests of both ways.

    Args:
        timer: of the rank.
        vocab_size: the rank's.
        num_requests: how many at most.
        num_context, widths: the length of their contexts, and the shape of their trees.
    """

    def __init__(
        self,
        timer: RankTimer,
        vocab_size: int,
        num_requests: int,
        num_context: int,
        widths: Sequence[int],
    ) -> None:
        self._timer = timer
        contexts = [random_context(vocab_size, num_context, seed) for seed in range(num_requests)]
        self._paths = [paths_of(context[-1], widths) for context in contexts]
        self._trees = [TokenTree.from_paths(paths) for paths in self._paths]
        self._num_paths = len(self._paths[0])
        room = len(self._trees[0])
        for request, context in enumerate(contexts):
            numbers = range(request * self._num_paths, (request + 1) * self._num_paths)
            timer.prefill(dict.fromkeys(numbers, context), room)

    def rounds(self, num_requests: int, num_rounds: int) -> Figures:
        """Medians over some rounds with the first so many requests; the first round is dropped."""
        plain = {
            self._number(request, 0): TokenTree.chain(paths[0][:1])
            for request, paths in enumerate(self._paths[:num_requests])
        }
        tree = {
            self._number(request, 0): tree
            for request, tree in enumerate(self._trees[:num_requests])
        }
        sequences = {
            self._number(request, place): TokenTree.chain(path)
            for request, paths in enumerate(self._paths[:num_requests])
            for place, path in enumerate(paths)
        }
        ways = {"plain": plain, "tree": tree, "sequences": sequences}
        seconds: defaultdict[str, list[float]] = defaultdict(list)
        for turn in range(num_rounds + 1):
            for way in sorted(ways, reverse=bool(turn % 2)):
                seconds[way].append(self._timer.seconds(ways[way]).whole_s)
        return _figures({way: values[1:] for way, values in seconds.items()}) | {
            f"{way}_tokens": float(sum(map(len, rows.values()))) for way, rows in ways.items()
        }

    def _number(self, request: int, place: int) -> int:
        return request * self._num_paths + place


def _figures(seconds: dict[str, list[float]]) -> Figures:
    figures = {f"{way}_ms": 1e3 * statistics.median(values) for way, values in seconds.items()}
    figures["sequences_to_tree"] = _median_ratio(seconds["sequences"], seconds["tree"])
    figures["tree_to_plain"] = _median_ratio(seconds["tree"], seconds["plain"])
    return figures


def _median_ratio(above: Iterable[float], below: Iterable[float]) -> float:
    """Of pairs measured in the same round."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def measure(
    options: RankOptions,
    num_context: int,
    widths: Sequence[int],
    batches: Sequence[int],
    num_rounds: int,
) -> dict[str, Figures]:
    """Figures by number of requests."""
    rank = load_rank(options)
    vocab_size = rank.describe().vocab_size
    verification = Verification(RankTimer(rank), vocab_size, max(batches), num_context, widths)
    return {str(batch): verification.rounds(batch, num_rounds) for batch in batches}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cluster.bench.verification", description=__doc__
    )
    parser.add_argument("path", type=Path, help="the model's folder")
    add_rank_options(parser)
    parser.add_argument("--widths", type=int, nargs="+", required=True)
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args()
    options = rank_options(asked.path, asked)
    figures = measure(options, asked.context, asked.widths, asked.batches, asked.rounds)
    print(json.dumps({"widths": list(asked.widths), "batches": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
