"""What a run leaves behind: `report.html`, `report.json`, `requests.jsonl`, `schedule.jsonl`.

`requests.jsonl` has the raw times of every request, in seconds from the begin of its stretch (when
that was says `report.json`): enough to derive every figure again. No file but the schedule holds
prompts, and none holds answers.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest.experiment import Experiment, Results
from loadtest.plan import save_plan
from loadtest.records import RequestRecord
from loadtest.report.page import page
from loadtest.summary import Summary
from loadtest.timings import DEFINITIONS
from loadtest.tokens import SOURCE_MEANINGS, TokenCounts
from loadtest.verdict import Verdict

SCHEMA_VERSION = 1


def write_report(folder: Path, experiment: Experiment, results: Results, verdict: Verdict) -> None:
    """Write all files, raw ones first; `schedule.jsonl` is the first plan, later ones have numbers.

    A file is there whole or, where writing failed, as it was before.
    """
    with _new(folder / "requests.jsonl") as path, path.open("w") as file:
        for row in request_rows(results):
            file.write(json.dumps(row) + "\n")
    for number, plan in enumerate(results.plans):
        with _new(folder / f"schedule{f'-{number + 1}' if number else ''}.jsonl") as path:
            save_plan(plan, path)
    body = report_json(experiment, results, verdict)
    with _new(folder / "report.json") as path:
        path.write_text(json.dumps(_finite(body), indent=1, allow_nan=False))
    with _new(folder / "report.html") as path:
        text = page(experiment, results, verdict)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def _new(path: Path) -> Iterator[Path]:
    """Where to write a file that takes its place when it is whole."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def report_json(experiment: Experiment, results: Results, verdict: Verdict) -> dict[str, Any]:
    """Every figure, with its definition."""
    slo = experiment.judging.slo
    return {
        "schema_version": SCHEMA_VERSION,
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "verdict": {"word": verdict.word, "good": verdict.good, "reasons": verdict.reasons},
        "command": sys.argv[1:],
        "machine": {"python": platform.python_version(), "system": platform.platform()},
        "targets": [
            {
                "arm": target.name,
                "url": target.url,
                "model": target.model,
                "max_context": target.max_context,
                "body": target.overrides,
                "counting": target.counting,
            }
            for target in experiment.targets
        ],
        "slo": None if slo is None else {"limits_s": slo.limits_s, "share": slo.share},
        "notes": [plan.notes for plan in results.plans],
        "definitions": DEFINITIONS,
        "measurements": [summary_json(summary) for summary in results.summaries],
        "comparisons": [comparison.to_json() for comparison in results.comparisons],
        "searches": {
            name: {"passed": found.passed, "failed": found.failed, "tried": found.tried}
            for name, found in results.searches.items()
        },
    }


def summary_json(summary: Summary) -> dict[str, Any]:
    """One measurement in full."""
    server = summary.server
    return {
        **summary.flat(),
        "stretches": summary.stretches,
        "load": summary.load,
        "planned": summary.num_planned,
        "begun": summary.num_begun,
        "window_s": summary.window_s,
        "outcomes": summary.outcomes,
        "failures": summary.failures,
        "missed": summary.missed,
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "token_counts": {
            "sources": summary.sources,
            "meanings": {str(name): text for name, text in SOURCE_MEANINGS.items()},
            "answers_differing_from_usage": summary.num_differing,
        },
        "distributions": {name: found.to_json() for name, found in summary.distributions.items()},
        "acceptance": None if summary.acceptance is None else summary.acceptance.to_json(),
        "validity": summary.validity.to_json(),
        "server": None
        if server is None
        else {
            "grown": server.counters,
            "gauges": server.gauges,
            "gauge_times_s": server.times_s,
            "restarted": server.restarted,
        },
    }


def request_rows(results: Results) -> Iterator[dict[str, Any]]:
    """Every request of every measurement, in the window or not."""
    for measurement, summary in zip(results.measurements, results.summaries, strict=True):
        within = {id(one.record) for one in summary.measured}
        every = {id(one.record): one for one in (*summary.measured, *summary.outside)}
        for number, stretch in enumerate(measurement.stretches):
            for record in stretch.records:
                yield {
                    "arm": measurement.target.name,
                    "label": measurement.label,
                    "stretch": number,
                    "measured": id(record) in within,
                    **_row(record, every[id(record)].counts, stretch.start_s),
                }


def _row(record: RequestRecord, counts: TokenCounts, origin_s: float) -> dict[str, Any]:
    def since(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s - origin_s, 6)

    return {
        "index": record.index,
        "turn": record.turn,
        "outcome": str(record.outcome),
        "status": record.status,
        "detail": record.detail,
        "finish_reason": record.finish_reason,
        "scheduled_s": since(record.scheduled_s),
        "released_s": since(record.released_s),
        "sent_s": since(record.sent_s),
        "headers_s": since(record.headers_s),
        "end_s": since(record.end_s),
        "chunks": [
            [since(chunk.at_s), count]
            for chunk, count in zip(record.chunks, counts.per_chunk, strict=True)
        ],
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "speculation": record.speculation,
    }


def _finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """JSON has no NaN; a gauge that was not there is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value
