"""Does speculation with its budget pay, by batch size? Interleaved pairs on one server.

    python -m cluster.bench.pairs CONFIG [--batches 1 4 16 32] [--pairs 10] [--per-stream 4]
                                         [--prompts FILE]

One pair answers the same prompts twice: with the configuration's speculation, and plainly; see
`paired_runs`. Prints for each batch size the median of the pairs' throughput ratios with a
bootstrap interval, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.bench.paired_runs import (
    Pairs,
    Plan,
    Prompt,
    add_arguments,
    plan_of,
    print_pairs,
    read_prompts,
    run_pairs,
)
from cluster.bench.raw_client import stream_completion
from cluster.bench.server import running_server
from cluster.config import load_config

SPECULATION: Mapping[str, Mapping[str, Any]] = {"plain": {"enabled": False}, "budget": {}}
"""What the requests of each arm wish of it."""


async def compare(config: Path, prompts: Sequence[Prompt], plan: Plan) -> dict[int, Pairs]:
    """All pairs on a server of their own, by batch size."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(config, Path(folder) / "server.log") as url,
    ):
        arms = {
            name: functools.partial(
                stream_completion, url, more={"speculation": wish, "return_token_ids": True}
            )
            for name, wish in SPECULATION.items()
        }
        return await run_pairs(prompts, arms, plan)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.bench.pairs", description=__doc__)
    add_arguments(parser, (1, 4, 16, 32))
    arguments = parser.parse_args(argv)
    prompts = read_prompts(load_config(arguments.config), arguments.prompts)
    found = asyncio.run(compare(arguments.config, prompts, plan_of(arguments)))
    print(f"{len(set(map(tuple, prompts)))} different prompts")
    print_pairs(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
