"""Recorded arrivals: the Azure LLM inference traces (CSV) and the Mooncake traces (JSON lines).

Traces hold times and lengths, no text. They are scaled to the machine: time by the wanted rate,
lengths by a factor, and what is still longer than the server's context is clipped; how many were
is told. Mooncake's `hash_ids` (equal ids are equal 512-token prefixes) are kept, so that requests
that shared a prefix share one again.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from loadtest.errors import UsageError

BLOCK_TOKENS = 512
"""Tokens behind one of Mooncake's hash ids."""


@dataclass(frozen=True)
class TraceRow:
    """One recorded request: when (seconds from the first), how long, and which prefix blocks."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scaling:
    """How a trace is brought to the size of a machine.

    Attributes:
        rate: mean requests a second over the rows used; None keeps the recorded times.
        length: factor on prompt and output lengths (and on the block size).
        max_total_tokens: outputs are clipped to half of it after scaling, and prompts to what the
            output leaves; None for no clipping.
    """

    rate: float | None
    length: float
    max_total_tokens: int | None


@dataclass(frozen=True)
class ScaledTrace:
    """Rows ready to be sent, and what was done to them."""

    rows: tuple[TraceRow, ...]
    num_clipped: int
    time_factor: float


def read_trace(path: Path) -> list[TraceRow]:
    """Rows of a trace file, in order of time.

    Raises:
        UsageError: if the file is of neither format.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = _azure(text) if path.suffix == ".csv" else _mooncake(text)
    except KeyError as error:
        raise UsageError(f"--trace {path}: not an Azure or Mooncake trace: no {error}") from error
    except (OSError, ValueError, TypeError, OverflowError, csv.Error) as error:
        raise UsageError(f"--trace {path}: not an Azure or Mooncake trace: {error}") from error
    if not rows:
        raise UsageError(f"--trace {path}: an empty trace")
    start_s = min(row.at_s for row in rows)
    moved = [replace(row, at_s=row.at_s - start_s) for row in rows]
    return sorted(moved, key=lambda row: row.at_s)


def scale(rows: Sequence[TraceRow], scaling: Scaling) -> ScaledTrace:
    """Time, lengths and limits applied; times start at zero."""
    start_s, span_s = rows[0].at_s, rows[-1].at_s - rows[0].at_s
    factor = 1.0
    if scaling.rate is not None and span_s > 0:
        factor = (len(rows) - 1) / span_s / scaling.rate
    scaled = [_scaled(row, (row.at_s - start_s) * factor, scaling) for row in rows]
    return ScaledTrace(
        tuple(row for row, _ in scaled), sum(clipped for _, clipped in scaled), factor
    )


def _scaled(row: TraceRow, at_s: float, scaling: Scaling) -> tuple[TraceRow, bool]:
    prompt = max(1, round(row.prompt_tokens * scaling.length))
    output = max(1, round(row.output_tokens * scaling.length))
    limit = scaling.max_total_tokens or prompt + 2 * output
    kept_output = min(output, max(1, limit // 2))
    kept_prompt = min(prompt, max(1, limit - kept_output))
    clipped = (kept_prompt, kept_output) != (prompt, output)
    return replace(row, at_s=at_s, prompt_tokens=kept_prompt, output_tokens=kept_output), clipped


def _azure(text: str) -> list[TraceRow]:
    return [
        TraceRow(
            _moment_s(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"])
        )
        for row in csv.DictReader(text.splitlines())
    ]


def _moment_s(stamp: str) -> float:
    """Seconds of a time stamp, with or without a zone; of its decimals Python reads six."""
    moment = datetime.fromisoformat(stamp)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _mooncake(text: str) -> list[TraceRow]:
    rows = [json.loads(line, parse_constant=_no_number) for line in text.split("\n") if line]
    return [
        TraceRow(
            float(row["timestamp"]) / 1000,
            int(row["input_length"]),
            int(row["output_length"]),
            tuple(int(block) for block in row.get("hash_ids", ())),
        )
        for row in rows
    ]


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")
