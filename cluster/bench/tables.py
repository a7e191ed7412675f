"""The tables that `treeserve bench` prints, out of its report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]

SPEED_UP = (
    ("alpha", "alpha"),
    ("gamma", "gamma"),
    ("c", "c"),
    ("v", "v"),
    ("f", "f"),
    ("measured", "measured"),
    ("by_alpha", "(a)"),
    ("by_depth", "(b)"),
    ("by_cost", "(c)"),
    ("by_alpha_to_measured", "(a)/meas."),
    ("by_depth_to_measured", "(b)/meas."),
    ("by_cost_to_measured", "(c)/meas."),
)
SPEED_UP_NOTE = """speed-up over plain decoding, foretold and measured; costs in plain LLM steps
alpha: drafts accepted of those offered; gamma: mean depth of the trees; c: drafting, per step;
v: a step with its drafts; f: a plain step's time beside the LLM
(a): tokens from alpha and gamma, (1 - alpha^(gamma+1)) / (1 - alpha), over 1 + c
(b): tokens from acceptance by depth, over 1 + c; (c): the same, times 1 + f, over c + v + f"""


def print_steps(steps: Figures) -> None:
    print("milliseconds by nodes in a step")
    counts = [int(name.split("_")[1]) for name in steps if name.startswith("floor_")]
    _print_row("", counts)
    for kind in ("floor", "forward", "step"):
        _print_row(kind, [steps[f"{kind}_{count}_ms"] for count in counts])
    _print_row("transformers", [steps["transformers_1_ms"]])


def print_verification(figures: Figures) -> None:
    widths = ",".join(map(str, figures["widths"]))
    batches = figures["batches"]
    print(
        f"\nthe same drafts, <{widths}> a request, as trees and as sequences with KV of their own"
    )
    _print_row("requests", list(batches))
    for name in next(iter(batches.values())):
        _print_row(name, [one[name] for one in batches.values()])


def print_draft_calls(figures: Iterable[Figures]) -> None:
    for call in figures:
        print(f"\none call of {call['ssm']} at T = {call['temperature']:g}, without gRPC")
        _print_row("sessions", list(call["sessions"]))
        for name in next(iter(call["sessions"].values())):
            _print_row(name, [one[name] for one in call["sessions"].values()])


def print_serving(report: Figures) -> None:
    """Everything measured over HTTP at one temperature."""
    print(f"\n======== T = {report['temperature']:g}, {report['num_seeds']} seed(s) a prompt")
    _print_modes(report["modes"])
    _print_acceptance(report["acceptance"])
    _print_speed_up(report["speed_up"])
    for finding in report["findings"]:
        print(finding)
    _print_noise(report["noise"])
    if "streams" in report:
        print(f"\nwith {report['num_streams']} requests open at once")
        for mode, figures in report["streams"].items():
            print(f"{mode:>16} " + _pairs(figures))


def _print_modes(modes: Figures) -> None:
    columns = list(next(iter(next(iter(modes.values())).values())))
    # Each column as wide as its name: one line of headings.
    print(f"\n{'mode':>16} {'task':>16} " + " ".join(f"{name:>8}" for name in columns))
    for mode, tasks in modes.items():
        for task, figures in tasks.items():
            cells = (_cell(figures[name], max(len(name), 8)) for name in columns)
            print(f"{mode:>16} {task:>16} " + " ".join(cells))


def _print_acceptance(acceptance: Figures) -> None:
    print("\nacceptance by depth: P(accepted | accepted above, offered), (share of steps offered)")
    for mode, proposers in acceptance.items():
        for name, found in proposers.items():
            pairs = zip(found["acceptance"], found["offered_share"], strict=True)
            cells = (f"{_cell(rate, 5)} ({share:4.2f})" for rate, share in pairs)
            print(f"{mode:>16} {name:>16} " + " ".join(cells))


def _print_speed_up(speed_up: Figures) -> None:
    print(f"\n{SPEED_UP_NOTE}")
    print(f"{'mode':>16} {'task':>16} " + " ".join(f"{title:>9}" for _, title in SPEED_UP))
    for mode, tasks in speed_up.items():
        for task, figures in tasks.items():
            cells = (f"{figures[name]:9.3f}" for name, _ in SPEED_UP)
            print(f"{mode:>16} {task:>16} " + " ".join(cells))


def _print_noise(noise: Figures) -> None:
    if not any(noise.values()):
        return
    print("\npositions of noise, per LLM step")
    for mode, parts in noise.items():
        for part, figures in parts.items():
            print(f"{mode:>16} {part:>16} " + _pairs(figures))


def _print_row(name: str, values: Sequence[Any]) -> None:
    cells = (f"{value:9.2f}" if isinstance(value, float) else f"{value:>9}" for value in values)
    print(f"{name:>18}" + "".join(cells))


def _cell(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.2f}"


def _pairs(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
