"""The tables of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from loadtest.compare import Comparison
from loadtest.experiment import Results
from loadtest.records import OUTCOME_MEANINGS, Outcome
from loadtest.report.charts import measurement_name
from loadtest.report.highlights import highlights
from loadtest.report.units import NONE, number, percent, ranged, seconds, title
from loadtest.scrape import ServerSide
from loadtest.statistics import PERCENTILES
from loadtest.summary import Summary
from loadtest.timings import DEFINITIONS
from loadtest.tokens import SOURCE_MEANINGS, CountSource

MANY_PLACES = 8


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Cells are HTML already; the first of each row is its name."""
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def overview(summaries: Sequence[Summary]) -> str:
    """One row for each measurement."""
    head = (
        "",
        "answered",
        "failed",
        "TTFT from schedule<br>p50 / p90",
        "TPOT<br>p50 / p90",
        "tokens/s",
        "requests/s",
        "tokens<br>a chunk",
        "tokens<br>a step",
        "good",
        "goodput<br>requests/s",
    )
    return table(head, [_overview_row(summary) for summary in summaries])


def _overview_row(summary: Summary) -> list[str]:
    def pair(name: str) -> str:
        plain = summary.distributions[name].plain()
        return f"{seconds(plain['p50'])} / {seconds(plain['p90'])}"

    name = escape(measurement_name(summary))
    mark = "" if summary.validity.valid else ' <strong class="bad">INVALID</strong>'
    steps = summary.acceptance.tokens_per_step if summary.acceptance else None
    return [
        name + mark,
        str(summary.num_good_ends),
        str(summary.num_failed),
        pair("ttft_from_schedule_s"),
        pair("tpot_s"),
        number(summary.output_tokens_per_s),
        number(summary.requests_per_s),
        number(summary.distributions["tokens_per_chunk"].mean),
        number(steps),
        percent(summary.good_share),
        number(summary.goodput_rps),
    ]


def latencies(summary: Summary) -> str:
    """All percentiles of one measurement, with intervals."""
    head = ("", "count", "mean", *(name.replace("_", ".") for name in PERCENTILES), "highest")
    rows = []
    for name, found in summary.distributions.items():
        is_time = name.endswith("_s")
        form = seconds if is_time else number
        rows.append(
            [
                title(name),
                number(found.count),
                form(found.mean),
                *(ranged(found.percentiles[key], is_time=is_time) for key in PERCENTILES),
                form(found.maximum),
            ]
        )
    return table(head, rows, "figures")


def outcomes(summary: Summary) -> str:
    """How requests ended, and what the first failure of each kind said."""
    rows = [
        [
            escape(name),
            str(count),
            escape(OUTCOME_MEANINGS[Outcome(name)]),
            escape(summary.failures.get(name, "")),
        ]
        for name, count in summary.outcomes.items()
    ]
    return table(("outcome", "requests", "meaning", "the first said"), rows, "left")


def harness(summaries: Sequence[Summary]) -> str:
    """The harness's own health."""
    rows = [
        [
            escape(measurement_name(summary)),
            "valid" if summary.validity.valid else '<strong class="bad">INVALID</strong>',
            seconds(summary.validity.schedule_lag["p50_s"]),
            seconds(summary.validity.schedule_lag["p99_s"]),
            seconds(summary.validity.schedule_lag["max_s"]),
            seconds(summary.validity.loop_lag["p50_s"]),
            seconds(summary.validity.loop_lag["p99_s"]),
            seconds(summary.validity.loop_lag["max_s"]),
            percent(summary.validity.cpu_share),
        ]
        for summary in summaries
    ]
    head = (
        "",
        "",
        "sent late<br>p50",
        "<br>p99",
        "<br>max",
        "loop late<br>p50",
        "<br>p99",
        "<br>max",
        "of one core",
    )
    return table(head, rows)


def counting(summaries: Sequence[Summary]) -> str:
    """Where token counts come from."""
    rows = [
        [
            escape(measurement_name(summary) or source),
            str(count),
            escape(SOURCE_MEANINGS[CountSource(source)]),
            str(summary.num_differing),
            number(summary.prompt_tokens),
            number(summary.cached_tokens),
        ]
        for summary in summaries
        for source, count in summary.sources.items()
    ]
    head = ("", "answers", "counted by", "unlike the usage", "prompt tokens", "of them cached")
    return table(head, rows, "left")


def acceptance(summaries: Sequence[Summary]) -> str:
    """Speculation by the server's own account in its answers."""
    rows = []
    for summary in summaries:
        if (found := summary.acceptance) is None:
            continue
        rows.append(
            [
                escape(measurement_name(summary)),
                number(found.num_answers),
                number(found.num_llm_steps),
                number(found.tokens_per_step),
                number(found.num_spec_steps),
                number(found.num_draft_tokens),
                number(found.num_accepted_tokens),
                percent(found.rate),
                number(found.mean_length),
            ]
        )
    head = (
        "",
        "answers",
        "LLM steps",
        "tokens a step",
        "drafted steps",
        "drafted",
        "accepted",
        "rate",
        "tokens a<br>drafted step",
    )
    return table(head, rows) if rows else "<p>The server's answers do not tell.</p>"


def comparison(found: Comparison) -> str:
    """Two arms against each other."""
    rows = [
        [
            title(name),
            f"{ratio.value:.3f}",
            f"{ratio.low:.3f} to {ratio.high:.3f}",
            str(ratio.num_pairs),
        ]
        for name, ratio in found.ratios.items()
    ]
    places = ", ".join(
        f"request {one.index} at {one.place}" for one in found.differences[:MANY_PLACES]
    )
    more = f" The first differences: {places}." if places else ""
    arms = escape(f"{found.second} by {found.first}")
    return (
        f"<h3>{escape(found.label)}</h3><p>{found.num_equal} of {found.num_pairs} pairs of answers "
        f"are equal, {found.unit} by {found.unit}; {found.num_unpaired} requests have no pair."
        f"{more}</p>" + (table(("", arms, "95 % interval", "pairs"), rows) if rows else "")
    )


def searches(results: Results) -> str:
    """Every rate tried."""
    rows = [
        [
            escape(name or "server"),
            number(found.passed),
            number(found.failed),
            ", ".join(f"{number(rate)} {'✓' if passed else '✗'}" for rate, passed in found.tried),
        ]
        for name, found in results.searches.items()
    ]
    return table(("", "highest that passed", "lowest that failed", "tried"), rows)


def server_highlights(results: Results) -> str:
    """The few things that everyone asks for, a column for each measurement."""
    told = [
        (escape(measurement_name(summary)), dict(highlights(summary.server)))
        for summary in results.summaries
        if summary.server is not None
    ]
    names = list(dict.fromkeys(name for _, values in told for name in values))
    if not names:
        return ""
    head = ("", *(name for name, _ in told))
    return table(head, [[name, *(values.get(name, NONE) for _, values in told)] for name in names])


def server_side(side: ServerSide) -> str:
    """Everything that the server's metrics page told, but for histogram buckets."""
    gauges = []
    for name, values in side.gauges.items():
        known = [value for value in values if not math.isnan(value)]
        mean = sum(known) / len(known) if known else None
        gauges.append(
            [
                escape(name),
                number(known[0]) if known else NONE,
                number(mean),
                number(max(known)) if known else NONE,
                number(known[-1]) if known else NONE,
            ]
        )
    grown = [
        [escape(name), number(value)]
        for name, value in side.counters.items()
        if value and "_bucket" not in name
    ]
    return table(("gauge", "before", "mean", "highest", "after"), gauges) + table(
        ("counter", "grew by"), grown
    )


def definitions() -> str:
    """What every word means."""
    rows = [[title(name), text] for name, text in DEFINITIONS.items()]
    rows += [
        [
            "throughput",
            "Output tokens that arrived within the window, and answers of the window, by its "
            "length. The window begins after the warm-up and ends with the last answer, or, with a "
            "cool-down, so long before the last request is due (in a closed loop: before the last "
            "answer). With several arms that holds for each block. A request belongs to it by the "
            "moment when it was due.",
        ],
        [
            "goodput",
            "Answers that kept every limit of the SLO, by the window's length. <i>good</i> is "
            "their share of all requests that ended by themselves: failed ones are in the "
            "denominator; those that the workload hung up on, or the end of the run cut off, are "
            "left out. Later turns of a conversation that broke off were never sent and are in "
            "neither. Failed requests are in no latency.",
        ],
        [
            "percentile",
            "The smallest measured value that at least that share of values does not exceed. Given "
            "only from enough values for one to lie beyond it (100 for p99). Below it the 95 % "
            "bootstrap interval, over requests.",
        ],
        [
            "tokens a step",
            "Output tokens after the first by the LLM steps that carried the answers, both by the "
            "server's account. <i>rate</i>: accepted by drafted tokens.",
        ],
    ]
    return table(("", ""), [[name, text] for name, text in rows], "left words")
