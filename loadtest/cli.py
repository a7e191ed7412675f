"""`python -m loadtest`: from the arguments to the report, and the exit status.

0 a valid run within its SLO, 1 anything else that was measured or could not be, 2 wrong use. The
first Ctrl-C (or SIGTERM) ends the run and reports what there was; the second ends the harness, also
while it writes its report. Before the first request one is enough.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from loadtest.client import http_session
from loadtest.errors import LoadtestError, UsageError
from loadtest.experiment import Experiment, Results, perform
from loadtest.interruption import Interruption
from loadtest.lab import Lab
from loadtest.options import CLOSED, parser
from loadtest.probe import probe
from loadtest.report.files import write_report
from loadtest.setup import (
    make_judging,
    make_limits,
    make_loads,
    make_planner,
    make_ruler,
    make_search,
    make_settings,
    make_targets,
)
from loadtest.target import Target
from loadtest.verdict import Verdict, judge_results, last_line

LAST_READS_S = 0.05
"""From the wish to stop until the stop: what has come by then is read, and not cut off."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    try:
        arguments = parser().parse_args(argv)
        experiment = make_experiment(arguments)
        _prepare(arguments.out)
        results = Results()
        with Interruption() as interruption:
            work = _measure(experiment, arguments, results, interruption)
            experiment = asyncio.run(work)
            return _conclude(experiment, arguments, results)
    except UsageError as error:
        return _complain(error, 2)
    except LoadtestError as error:
        return _complain(error, 1)


def make_experiment(arguments: argparse.Namespace) -> Experiment:
    """Everything but what the server must be asked for.

    Raises:
        UsageError: for wrong arguments.
    """
    ruler = make_ruler(arguments)
    is_open = arguments.arrivals != CLOSED
    planner = make_planner(arguments, ruler)
    if planner.replay is not None:
        is_open = planner.replay.is_open
    loads, search = make_loads(arguments), make_search(arguments)
    for load in loads if search is None else (search.low, search.high):
        planner.check(load)
    return Experiment(
        make_targets(arguments),
        planner,
        make_settings(arguments),
        make_judging(arguments, ruler),
        loads,
        search,
        is_open,
        arguments.blocks,
    )


async def _measure(
    experiment: Experiment,
    arguments: argparse.Namespace,
    results: Results,
    interruption: Interruption,
) -> Experiment:
    """Probe the servers, then perform; returns the experiment with what the probes found."""
    limits = make_limits(arguments)
    async with http_session(limits, verify_tls=not arguments.insecure) as session:
        targets = [await probe(session, target, limits) for target in experiment.targets]
        experiment = replace(experiment, targets=targets)
        experiment.planner.max_context = _smallest_context(targets)
        lab = Lab(session)
        loop = asyncio.get_running_loop()
        interruption.listen(
            "stopping", partial(loop.call_soon_threadsafe, loop.call_later, LAST_READS_S, lab.stop)
        )
        # What lives now lives to the end: the collector need not look at it in mid-run.
        gc.collect()
        gc.freeze()
        await perform(experiment, lab, results)
        interruption.listen("writing the report")  # while there still is a loop to be asked
    return experiment


def _smallest_context(targets: Sequence[Target]) -> int | None:
    told = [target.max_context for target in targets if target.max_context is not None]
    return min(told, default=None)


def _prepare(folder: Path) -> None:
    """Find out now, not after the run, that nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}") from error


def _conclude(experiment: Experiment, arguments: argparse.Namespace, results: Results) -> int:
    verdict = judge_results(results, experiment.judging.slo, require_equal=arguments.require_equal)
    folder, status = arguments.out, 0 if verdict.good else 1
    try:
        write_report(folder, experiment, results, verdict)
    except OSError as error:
        status = _complain(f"--out {folder}: {error.strerror}: the report goes elsewhere", 1)
        folder = _write_elsewhere(experiment, results, verdict)
    where = "no report" if folder is None else folder / "report.html"
    reasons = (f"  {reason}" for reason in verdict.reasons)
    last = json.dumps(last_line(results, verdict), allow_nan=False)
    _tell(f"{verdict.word}: {where}", *reasons, last)
    return status


def _tell(*lines: str) -> None:
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:  # nobody reads it, and the report is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_elsewhere(experiment: Experiment, results: Results, verdict: Verdict) -> Path | None:
    """Where the report now is; a run is not lost for a disk that has filled up meanwhile."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="loadtest-report-"))
        write_report(folder, experiment, results, verdict)
    except OSError as error:
        _complain(error, 1)
        return None
    return folder


def _complain(error: object, status: int) -> int:
    print(f"loadtest: {error}", file=sys.stderr)
    return status
