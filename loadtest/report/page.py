"""The report as one HTML page that needs nothing else: no network, no script."""

from __future__ import annotations

import time
from html import escape
from pathlib import Path

from loadtest.experiment import Experiment, Results
from loadtest.report import tables
from loadtest.report.charts import (
    acceptance_chart,
    all_timelines,
    latency_charts,
    load_charts,
    measurement_name,
)
from loadtest.report.waterfall import key, slowest
from loadtest.verdict import Verdict

STYLE = Path(__file__).with_name("style.css")
GOOD, BAD = "good", "bad"


def page(experiment: Experiment, results: Results, verdict: Verdict) -> str:
    """The whole page, verdict first."""
    sections = [
        _section("Figures", tables.overview(results.summaries)),
        _section("Search", tables.searches(results) if results.searches else ""),
        _section("The arms compared", "".join(map(tables.comparison, results.comparisons))),
        _section("Latency", latency_charts(results.summaries)),
        _section("Load against latency", load_charts(results.summaries)),
        _section("Speculation", _speculation(results)),
        _section("Slowest requests", _slowest(results)),
        _section("Over time", all_timelines(results)),
        _section("Every figure", _details(results)),
        _section("The harness itself", tables.harness(results.summaries)),
        _section("Token counts", tables.counting(results.summaries)),
        _section("The server's own account", tables.server_highlights(results) + _server(results)),
        _section("Words", tables.definitions()),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Load test: '
        f"{escape(verdict.word)}</title><style>{STYLE.read_text()}</style></head><body>"
        f"{_verdict(verdict)}{_what(experiment, results)}{''.join(sections)}</body></html>\n"
    )


def _verdict(verdict: Verdict) -> str:
    kind = GOOD if verdict.good else BAD
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
    return f'<header class="{kind}"><h1>{escape(verdict.word)}</h1><ul>{reasons}</ul></header>'


def _what(experiment: Experiment, results: Results) -> str:
    slo = experiment.judging.slo
    lines = [
        " ".join(
            part for part in (target.name and f"{target.name}:", target.url, target.model) if part
        )
        + (f" with {target.overrides}" if target.overrides else "")
        for target in experiment.targets
    ]
    notes = dict.fromkeys(note for plan in results.plans for note in plan.notes)
    lines += [*notes, f"seed {experiment.planner.seed}"]
    if slo is not None:
        lines.append(f"SLO: {slo}")
    if experiment.judging.warm_up_s or experiment.judging.cool_down_s:
        lines.append(
            f"left out: {experiment.judging.warm_up_s:g} s of warm-up, "
            f"{experiment.judging.cool_down_s:g} s of cool-down"
        )
    lines.append(time.strftime("%Y-%m-%d %H:%M %Z"))
    return f'<p class="what">{"<br>".join(map(escape, lines))}</p>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _speculation(results: Results) -> str:
    if all(summary.acceptance is None for summary in results.summaries):
        return ""
    return tables.acceptance(results.summaries) + acceptance_chart(results.summaries)


def _slowest(results: Results) -> str:
    parts = [
        f"<h3>{escape(measurement_name(summary))}</h3>{slowest(summary)}"
        for summary in results.summaries
    ]
    return key() + "".join(parts)


def _details(results: Results) -> str:
    lone = len(results.summaries) == 1
    return "".join(
        f"<details{' open' if lone else ''}><summary>{escape(measurement_name(summary))}: "
        f"{summary.num_begun} of {summary.num_planned} requests begun, "
        f"{sum(summary.outcomes.values())} in the window of {summary.window_s:.1f} s</summary>"
        f"{tables.latencies(summary)}{tables.outcomes(summary)}</details>"
        for summary in results.summaries
    )


def _server(results: Results) -> str:
    return "".join(
        f"<details><summary>{escape(measurement_name(summary))}</summary>"
        f"{tables.server_side(summary.server)}</details>"
        for summary in results.summaries
        if summary.server is not None
    )
