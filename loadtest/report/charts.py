"""The pictures of a report: distributions, time lines, load against latency, acceptance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from loadtest.experiment import Results
from loadtest.lab import Measurement
from loadtest.report.svg import Axis, Series, bar_chart, legend, line_chart
from loadtest.report.units import number, percent, short_seconds
from loadtest.summary import Summary
from loadtest.timings import Timing

CDFS: tuple[tuple[str, Callable[[Timing], Sequence[float]]], ...] = (
    ("TTFT from the schedule", lambda timing: [timing.ttft_from_schedule_s]),
    ("TTFT from the sending", lambda timing: [timing.ttft_s]),
    ("TPOT", lambda timing: [] if timing.tpot_s is None else [timing.tpot_s]),
    (
        "inter-token latency, by token",
        lambda timing: [
            gap / tokens
            for gap, tokens in zip(timing.gaps_s, timing.gap_tokens, strict=True)
            for _ in range(tokens)
        ],
    ),
    ("gap between deliveries", lambda timing: timing.gaps_s),
    ("end to end from the schedule", lambda timing: [timing.e2e_from_schedule_s]),
)
CDF_POINTS = 250
BIN_S = 1.0


def latency_charts(summaries: Sequence[Summary]) -> str:
    """Cumulative distributions of all measurements, one chart for each latency."""
    share = Axis("share", percent, top=1.0)
    charts = []
    for title, values in CDFS:
        series = []
        for summary, style in zip(summaries, styles(summaries), strict=True):
            timings = [one.timing for one in summary.measured if one.timing is not None]
            found = [value for timing in timings for value in values(timing)]
            series.append(_styled(style, _cdf(found)))
        charts.append(
            line_chart(title, series, Axis("", short_seconds, log=True), share, step=True)
        )
    return legend(styles(summaries)) + _grid(charts)


def timeline_charts(measurement: Measurement, summary: Summary) -> str:
    """Open requests and tokens a second over the run."""
    time_axis = Axis("seconds from the start", number)
    opened: list[tuple[float, float]] = []
    tokens: list[tuple[float, float]] = []
    offset_s = 0.0
    everything = (*summary.measured, *summary.outside)
    counts = {id(one.record): one.counts.per_chunk for one in everything}
    for stretch in measurement.stretches:
        moments = []
        bins: defaultdict[int, float] = defaultdict(float)
        for record in stretch.records:
            if record.sent_s is None or record.end_s is None:
                continue
            moments += [(record.sent_s, 1), (record.end_s, -1)]
            for chunk, count in zip(record.chunks, counts[id(record)], strict=True):
                bins[int((chunk.at_s - stretch.start_s) / BIN_S)] += count
        level = 0
        for at_s, change in sorted(moments):
            level += change
            opened.append((offset_s + at_s - stretch.start_s, level))
        length = int((stretch.end_s - stretch.start_s) / BIN_S) + 1
        tokens += [(offset_s + place * BIN_S, bins[place] / BIN_S) for place in range(length)]
        offset_s += stretch.end_s - stretch.start_s
    return _grid(
        [
            line_chart(
                "open requests", [Series("", opened)], time_axis, Axis("", number), step=True
            ),
            line_chart("output tokens a second", [Series("", tokens)], time_axis, Axis("", number)),
        ]
    )


def load_charts(summaries: Sequence[Summary]) -> str:
    """Latency and good share against throughput, a line for each arm."""
    by_arm: defaultdict[str, list[Summary]] = defaultdict(list)
    for summary in sorted(summaries, key=lambda one: one.load or 0.0):
        by_arm[summary.arm].append(summary)
    if all(len(points) < 2 for points in by_arm.values()):
        return ""

    def series(x: Callable[[Summary], float], y: Callable[[Summary], float | None]) -> list[Series]:
        return [
            Series(
                arm or "server",
                [(x(one), value) for one in points if (value := y(one)) is not None],
                place,
            )
            for place, (arm, points) in enumerate(by_arm.items())
        ]

    def quantile(name: str, share: str) -> Callable[[Summary], float | None]:
        return lambda one: one.distributions[name].plain()[share]

    def offered(one: Summary) -> float:
        return one.load or 0.0

    tokens = Axis("output tokens a second", number)
    load = Axis("offered load", number)
    charts = [
        line_chart(
            f"{title} against throughput",
            series(lambda one: one.output_tokens_per_s, quantile(name, share)),
            tokens,
            Axis("", short_seconds),
            dots=True,
        )
        for title, name, share in (
            ("TTFT from the schedule, p50", "ttft_from_schedule_s", "p50"),
            ("TTFT from the schedule, p90", "ttft_from_schedule_s", "p90"),
            ("TPOT, p50", "tpot_s", "p50"),
            ("TPOT, p90", "tpot_s", "p90"),
        )
    ]
    charts.append(
        line_chart(
            "throughput against load",
            series(offered, lambda one: one.output_tokens_per_s),
            load,
            Axis("tokens/s", number),
            dots=True,
        )
    )
    if any(summary.good_share is not None for summary in summaries):
        charts.append(
            line_chart(
                "good requests against load",
                series(offered, lambda one: one.good_share),
                load,
                Axis("", percent, top=1.0),
                dots=True,
            )
        )
    return legend(series(offered, offered)) + _grid(charts)


def acceptance_chart(summaries: Sequence[Summary]) -> str:
    """Share of drafted steps that went at least so deep."""
    telling = [
        (summary, style)
        for summary, style in zip(summaries, styles(summaries), strict=True)
        if summary.acceptance is not None and summary.acceptance.by_depth
    ]
    if not telling:
        return ""
    series = [
        _styled(style, list(enumerate(summary.acceptance.by_depth)))
        for summary, style in telling
        if summary.acceptance is not None
    ]
    deepest = max(len(one.points) for one in series)
    names = [str(depth + 1) for depth in range(deepest)]
    chart = bar_chart(
        "drafted steps that committed at least so many draft tokens",
        names,
        series,
        "draft tokens",
        Axis("", percent, top=1.0),
    )
    return legend(series) + _grid([chart])


def styles(summaries: Sequence[Summary]) -> list[Series]:
    """An empty series for each measurement: loads have colours, the second arm is dashed."""
    labels = list(dict.fromkeys(summary.label for summary in summaries))
    arms = list(dict.fromkeys(summary.arm for summary in summaries))
    lone = len(labels) == 1
    return [
        Series(
            measurement_name(summary),
            (),
            arms.index(summary.arm) if lone else labels.index(summary.label),
            not lone and arms.index(summary.arm) == 1,
        )
        for summary in summaries
    ]


def measurement_name(summary: Summary) -> str:
    """Load and arm."""
    return " ".join(word for word in (summary.label, summary.arm) if word)


def all_timelines(results: Results) -> str:
    """The time line of each measurement, under its name."""
    parts = []
    for measurement, summary in zip(results.measurements, results.summaries, strict=True):
        parts.append(f"<h3>{escape(measurement_name(summary))}</h3>")
        parts.append(timeline_charts(measurement, summary))
    return "".join(parts)


def _cdf(values: Sequence[float]) -> list[tuple[float, float]]:
    if not values:
        return []
    ordered = np.sort(np.asarray(values))
    count = len(ordered)
    places = np.unique(np.linspace(0, count - 1, min(count, CDF_POINTS)).round().astype(int))
    points = [(float(ordered[place]), (int(place) + 1) / count) for place in places]
    return [(points[0][0], 0.0), *points]


def _styled(style: Series, points: Sequence[tuple[float, float]]) -> Series:
    return Series(style.name, points, style.colour, style.dashed)


def _grid(charts: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>'
