"""From arguments to an experiment; every mistake in them is named before anything is sent."""

from __future__ import annotations

import argparse
import json
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from loadtest.arrivals import ArrivalSpec
from loadtest.client import Limits
from loadtest.errors import UsageError
from loadtest.experiment import SearchBounds
from loadtest.lab import RunSettings
from loadtest.numerals import above_zero
from loadtest.options import CLOSED, TRACE
from loadtest.plan import load_plan
from loadtest.planning import Planner
from loadtest.prompts import Prompt, read_prompts
from loadtest.slo import Slo
from loadtest.summary import Judging
from loadtest.target import Target, base_url
from loadtest.tokenizer import ExactRuler, load_ruler
from loadtest.traces import read_trace
from loadtest.validity import ValidityLimits
from loadtest.workload import LengthRange, WorkloadSpec

MIN_TOLERANCE = 0.001
"""Of a search; each measurement's own noise is far larger."""


def make_limits(arguments: argparse.Namespace) -> Limits:
    return Limits(arguments.timeout_s, arguments.silence_s, arguments.connect_s)


def make_settings(arguments: argparse.Namespace) -> RunSettings:
    return RunSettings(
        make_limits(arguments),
        arguments.concurrency,
        arguments.duration_s,
        arguments.max_open,
        arguments.scrape_s,
    )


def make_targets(arguments: argparse.Namespace) -> list[Target]:
    """One arm, or two if there is anything to compare."""
    names = [name.strip() for name in arguments.names.split(",")]
    two = arguments.against or arguments.arm_a or arguments.arm_b
    if arguments.require_equal and (not two or arguments.search):
        raise UsageError("--require-equal needs two arms at one load, as by --against or --arm-b")
    if two and (len(names) != 2 or names[0] == names[1] or not all(names)):
        raise UsageError("--names: two different names, as in on,off")
    api_key = None
    if arguments.api_key_file:
        api_key = _api_key(arguments.api_key_file)

    def target(name: str, url: str, overrides: str | None) -> Target:
        fields = _object("--arm-a or --arm-b", overrides or "{}")
        return Target(name, base_url(url), arguments.endpoint, arguments.model, api_key, fields)

    if not two:
        return [target("", arguments.url, None)]
    return [
        target(names[0], arguments.url, arguments.arm_a),
        target(names[1], arguments.against or arguments.url, arguments.arm_b),
    ]


def _api_key(path: Path) -> str:
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file: {error}") from error
    if not key.isprintable() or not key.isascii() or " " in key or not key:
        raise UsageError(f"--api-key-file {path}: not one key of printable characters")
    return key


def make_ruler(arguments: argparse.Namespace) -> ExactRuler | None:
    return load_ruler(arguments.tokenizer) if arguments.tokenizer else None


def make_judging(arguments: argparse.Namespace, ruler: ExactRuler | None) -> Judging:
    slo = Slo.parse(arguments.slo, arguments.slo_share) if arguments.slo else None
    if arguments.search and slo is None:
        raise UsageError("--search needs --slo")
    limits = ValidityLimits(arguments.max_lag_ms / 1e3, arguments.max_cpu)
    return Judging(slo, limits, arguments.warmup_s, arguments.cooldown_s, ruler)


def make_planner(arguments: argparse.Namespace, ruler: ExactRuler | None) -> Planner:
    """Without the server's context, which is not known yet."""
    if arguments.replay:
        replay = load_plan(arguments.replay)
        return Planner(_workload(arguments)[0], arguments.seed, None, replay=replay)
    if (arguments.arrivals == TRACE) != bool(arguments.trace):
        raise UsageError("--arrivals trace and --trace FILE go together")
    workload, notes = _workload(arguments)
    arrivals = None
    if arguments.arrivals != CLOSED:
        arrivals = ArrivalSpec(
            arguments.arrivals,
            arguments.rate or 1.0,
            arguments.burstiness,
            arguments.start_rate,
            arguments.duration_s,
            arguments.requests,
        )
    return Planner(
        workload,
        arguments.seed,
        arrivals,
        arguments.requests,
        read_trace(arguments.trace) if arguments.trace else (),
        arguments.trace.name if arguments.trace else "",
        arguments.length_scale,
        ruler=ruler,
        notes=notes,
    )


def make_loads(arguments: argparse.Namespace) -> list[float | None]:
    if arguments.sweep:
        loads = _numbers("--sweep", arguments.sweep)
        if arguments.replay or arguments.search:
            raise UsageError("--sweep goes with neither --replay nor --search")
        if arguments.arrivals == CLOSED and any(load != int(load) for load in loads):
            raise UsageError(f"--sweep {arguments.sweep}: users come in whole numbers")
        return list(loads)
    if arguments.replay or (arguments.trace and arguments.rate is None):
        return [None]
    return [arguments.concurrency if arguments.arrivals == CLOSED else arguments.rate]


def make_search(arguments: argparse.Namespace) -> SearchBounds | None:
    if not arguments.search:
        return None
    numbers = _numbers("--search", arguments.search)
    if len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise UsageError("--search LOW,HIGH: two rising rates")
    if arguments.tolerance < MIN_TOLERANCE:
        raise UsageError(f"--tolerance: at least {MIN_TOLERANCE}")
    if arguments.arrivals == CLOSED or arguments.replay:
        raise UsageError("--search needs an open loop")
    return SearchBounds(numbers[0], numbers[1], arguments.tolerance)


def _workload(arguments: argparse.Namespace) -> tuple[WorkloadSpec, tuple[str, ...]]:
    prompts: tuple[Prompt, ...] = ()
    notes: tuple[str, ...] = ()
    if arguments.workload:
        found = read_prompts(arguments.workload)
        prompts = found.prompts
        notes = (f"{len(prompts)} distinct prompts, {found.num_left_out} rows left out",)
    lengths = LengthRange.parse(arguments.prompt_tokens) if arguments.prompt_tokens else None
    if lengths is None and arguments.trace and not prompts:
        lengths = LengthRange(1, 1)  # the trace says the length of each
    params = {"temperature": arguments.temperature, **_object("--body", arguments.body)}
    if arguments.exact_output:
        params["ignore_eos"] = True
    spec = WorkloadSpec(
        LengthRange.parse(arguments.output_tokens),
        prompts,
        lengths,
        arguments.families,
        arguments.prefix_tokens,
        arguments.turns,
        arguments.think_s,
        arguments.cancel_share,
        params,
        dict(_choices(text) for text in arguments.vary),
        not arguments.allow_repeats,
    )
    spec.check()
    return spec, notes


def _choices(text: str) -> tuple[str, list[Any]]:
    name, _, values = text.partition("=")
    if not name:
        raise UsageError(f"--vary {text}: no field, as in temperature=[0,0.7]")
    try:
        choices = json.loads(values)
    except ValueError as error:
        raise UsageError(f"--vary {text}: {error}") from error
    if not isinstance(choices, list) or not choices:
        raise UsageError(f"--vary {text}: a list, as in temperature=[0,0.7]")
    return name, choices


def _object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{option}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f'{option}: a JSON object, as in {{"top_p": 0.9}}')
    return value


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [above_zero(part) for part in text.split(",")]
    except ArgumentTypeError as error:
        raise UsageError(f"{option} {text}: numbers with commas between: {error}") from None
