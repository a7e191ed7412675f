"""`treeserve bench`: single steps beside the floor, then modes of speculation over HTTP.

Two processes, one after the other, so that neither disturbs the other: `cluster.bench.steps`, and a
server of the configuration's own. Prints tables, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.errors import PeerError
from cluster.bench.modes import ALL_TASKS, ModeResult, Workload, modes_of, run_alone, run_together
from cluster.bench.prompts import SAMPLE, load_prompts
from cluster.bench.server import running_server
from cluster.config import Config, load_config
from cluster.models import resolve_model

Table = dict[str, dict[str, dict[str, float | None]]]
"""Mode, then task, then figure."""


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, and return the exit status."""
    config = load_config(arguments.config)
    prompts = load_prompts(arguments.prompts or SAMPLE, arguments.per_task)
    workload = Workload(prompts, arguments.max_tokens, arguments.temperature)
    report: dict[str, Any] = {"steps": _measure_steps(config, arguments.context)}
    _print_steps(report["steps"])
    modes = modes_of(config.speculation.drafters)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(arguments.config, Path(folder) / "server.log") as url,
    ):
        results = asyncio.run(run_alone(url, workload, modes))
        report["tokens_per_s"] = asyncio.run(run_together(url, workload, modes, arguments.streams))
    report["modes"] = _table(results)
    _print_modes(report["modes"])
    print(f"\noutput tokens/s with {arguments.streams} streams: " + _pairs(report["tokens_per_s"]))
    print(json.dumps(report))
    return 0


def _measure_steps(config: Config, num_context: int) -> dict[str, float]:
    path = resolve_model(config.model.path)
    command = [sys.executable, "-m", "cluster.bench.steps", str(path)]
    command += ["--dtype", config.model.dtype, "--context", str(num_context)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerError(f"measuring steps failed:\n{done.stderr[-2000:]}")
    steps: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return steps


def _table(results: Mapping[str, ModeResult]) -> Table:
    return {
        mode: {
            task: result.summary(task)
            for task in (ALL_TASKS, *dict.fromkeys(prompt.task for prompt in result.prompts))
        }
        for mode, result in results.items()
    }


def _print_steps(steps: Mapping[str, float]) -> None:
    print("milliseconds by nodes in a step")
    counts = [int(name.split("_")[1]) for name in steps if name.startswith("floor_")]
    print(f"{'':>14}" + "".join(f"{count:>9}" for count in counts))
    for kind in ("floor", "forward", "step"):
        print(f"{kind:>14}" + "".join(f"{steps[f'{kind}_{count}_ms']:9.2f}" for count in counts))
    print(f"{'transformers':>14}{steps['transformers_1_ms']:9.2f}")


def _print_modes(table: Table) -> None:
    columns = list(next(iter(next(iter(table.values())).values())))
    print(f"\n{'mode':>16} {'task':>16}" + "".join(f"{name:>28}" for name in columns))
    for mode, tasks in table.items():
        for task, figures in tasks.items():
            cells = "".join(
                f"{'-':>28}" if value is None else f"{value:28.2f}" for value in figures.values()
            )
            print(f"{mode:>16} {task:>16}{cells}")


def _pairs(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in figures.items())
