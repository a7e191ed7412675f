"""`treeserve bench`: steps, trees and draft calls alone, then modes of speculation over HTTP.

One process after the other, so that none disturbs another: what a rank and a draft model do alone,
then a server of the configuration's own. Prints tables, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from actors.errors import InputError, PeerError
from actors.request_manager.drafter_names import LEARNERS
from actors.request_manager.drafters import GRAMMAR
from cluster.bench import tables
from cluster.bench.acceptance import acceptance_of
from cluster.bench.modes import PLAIN, ModeResult, Workload, modes_of, run_alone, run_together
from cluster.bench.noise_use import noise_use
from cluster.bench.prediction import Prediction, finding, predict
from cluster.bench.prompts import SAMPLE, load_prompts
from cluster.bench.server import running_server
from cluster.config import Config, load_config
from cluster.models import resolve_draft_model, resolve_model

Report = dict[str, Any]

LEARNT = (
    "{} learn from every mode that asks them, and find the same prompts answered when the next "
    "one asks; cluster.bench.drafters keeps them apart"
)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, and return the exit status."""
    config = load_config(arguments.config)
    # What is wrong is better told now than when much has been measured.
    load_prompts(arguments.prompts or SAMPLE, arguments.per_task, arguments.limit)
    _modes_of(config, arguments)
    if arguments.json is not None:
        _write(arguments.json, "")
    report: Report = {}
    for part in arguments.parts or PARTS:
        report |= PARTS[part](config, arguments)
    text = json.dumps(report)
    print(text)
    if arguments.json is not None:
        _write(arguments.json, f"{text}\n")
    return 0


def _modes_of(config: Config, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Nothing here has a grammar: to draft by grammars alone would be plain decoding again."""
    drafters = [name for name in config.speculation.drafters if name != GRAMMAR]
    return modes_of(drafters, arguments.modes)


def _steps(config: Config, arguments: argparse.Namespace) -> Report:
    figures = _measured("steps", config, arguments)
    tables.print_steps(figures)
    return {"steps": figures}


def _verification(config: Config, arguments: argparse.Namespace) -> Report:
    options = ["--batches", *map(str, arguments.batches), "--widths", *map(str, arguments.widths)]
    figures = _measured("verification", config, arguments, *options)
    tables.print_verification(figures)
    return {"verification": figures}


def _draft_calls(config: Config, arguments: argparse.Namespace) -> Report:
    """Of every draft model, at every temperature."""
    figures = []
    for ssm in config.ssms:
        more = ssm.model_dump(mode="json", exclude={"path", "replicas"})
        for temperature in arguments.temperature:
            options = [str(resolve_draft_model(ssm.path)), "--ssm", json.dumps(more)]
            options += ["--temperature", str(temperature)]
            calls = _measured("draft_calls", config, arguments, *options)
            figures.append({"ssm": ssm.path, "temperature": temperature, "sessions": calls})
    tables.print_draft_calls(figures)
    return {"draft_calls": figures}


def _modes(config: Config, arguments: argparse.Namespace) -> Report:
    """Every temperature on one server."""
    prompts = load_prompts(arguments.prompts or SAMPLE, arguments.per_task, arguments.limit)
    modes = _modes_of(config, arguments)
    serving = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(arguments.config, Path(folder) / "server.log") as url,
    ):
        for temperature in arguments.temperature:
            repeats = arguments.seeds if temperature > 0.0 else 1
            workload = Workload(prompts, arguments.max_tokens, temperature, repeats)
            results = asyncio.run(run_alone(url, workload, modes))
            report = _mode_report(results) | {"temperature": temperature, "num_seeds": repeats}
            if learners := sorted(LEARNERS.intersection(config.speculation.drafters)):
                report["findings"].append(LEARNT.format(" and ".join(learners)))
            if arguments.streams:
                together = asyncio.run(run_together(url, workload, modes, arguments.streams))
                report["num_streams"] = arguments.streams
                report["streams"] = {m: dataclasses.asdict(one) for m, one in together.items()}
            tables.print_serving(report)
            serving.append(report)
    return {"serving": serving}


PARTS: Mapping[str, Callable[[Config, argparse.Namespace], Report]] = {
    "steps": _steps,
    "verification": _verification,
    "draft_calls": _draft_calls,
    "modes": _modes,
}


def _measured(
    name: str, config: Config, arguments: argparse.Namespace, *options: str
) -> dict[str, Any]:
    """What a module of `cluster.bench` prints when it is run on the configuration's LLM."""
    command = [sys.executable, "-m", f"cluster.bench.{name}", str(resolve_model(config.model.path))]
    command += [*options, "--dtype", config.model.dtype, "--context", str(arguments.context)]
    command += ["--quantization", config.llm.quantization]
    if arguments.rounds is not None:
        command += ["--rounds", str(arguments.rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerError(f"measuring {name} failed:\n{done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _mode_report(results: Mapping[str, ModeResult]) -> Report:
    """All that the answers and counters of the modes tell."""
    totals = {mode: result.totals() for mode, result in results.items()}
    drafted = {mode: sums.counts for mode, sums in totals.items() if sums and mode != PLAIN}
    foretold = {
        mode: {
            task: prediction
            for task in result.tasks
            if (prediction := _prediction(results[PLAIN], result, task)) is not None
        }
        for mode, result in results.items()
        if mode != PLAIN
    }
    return {
        "modes": {
            mode: {task: result.summary(task) for task in result.tasks}
            for mode, result in results.items()
        },
        "acceptance": {
            mode: {name: found.report() for name, found in acceptance_of(counts).items()}
            for mode, counts in drafted.items()
        },
        "speed_up": {
            mode: {task: prediction.report() for task, prediction in by_task.items()}
            for mode, by_task in foretold.items()
        },
        "findings": [
            finding(mode, next(iter(by_task.values())))
            for mode, by_task in foretold.items()
            if by_task
        ],
        "noise": {mode: noise_use(sums) for mode, sums in totals.items() if sums},
    }


def _prediction(plain: ModeResult, mode: ModeResult, task: str) -> Prediction | None:
    before, after = plain.totals(task), mode.totals(task)
    return predict(before, after) if before and after else None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "--json") from error
