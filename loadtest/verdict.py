"""The one answer: is the run valid, and did the server do what it should?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.experiment import Results
from loadtest.records import Outcome
from loadtest.slo import Slo
from loadtest.summary import Summary

MUCH_CACHED = 0.05
"""Share of prompt tokens: more flatters the TTFT, and most where two arms share one server."""


@dataclass(frozen=True)
class Verdict:
    """In a word, and why.

    Attributes:
        word: PASSED, MEASURED (there was no SLO), FAILED, INTERRUPTED or INVALID.
        reasons: lines for people.
        good: whether the exit status is 0.
    """

    word: str
    reasons: tuple[str, ...]
    good: bool


def judge_results(results: Results, slo: Slo | None, *, require_equal: bool) -> Verdict:
    """The worst that can be said comes first; the reasons tell everything."""
    invalid = [
        f"{_name(summary)}{problem}"
        for summary in results.summaries
        for problem in summary.validity.problems
    ]
    failed = _failings(results, slo, require_equal)
    notes = [
        text for summary in results.summaries for text in _notes(summary, has_slo=slo is not None)
    ]
    stopped = any(summary.stopped for summary in results.summaries)
    cut_off = ["ended before its time"] if stopped or not results.summaries else []
    reasons = (*invalid, *cut_off, *failed, *_found(results, slo), *notes)
    if invalid:
        return Verdict("INVALID", reasons, False)
    if cut_off:
        return Verdict("INTERRUPTED", reasons, False)
    if failed:
        return Verdict("FAILED", reasons, False)
    measured = slo is None or (_explores(results) and not results.searches)
    return Verdict("MEASURED" if measured else "PASSED", reasons, True)


def last_line(results: Results, verdict: Verdict) -> dict[str, Any]:
    """What scripts read. With several measurements the first one's figures stand at the top."""
    flats = [summary.flat() for summary in results.summaries]
    line: dict[str, Any] = {**(flats[0] if flats else {})}
    line["verdict"] = verdict.word
    line["passed"] = verdict.good
    line["valid"] = bool(flats) and all(flat["valid"] for flat in flats)
    if len(flats) > 1:
        line["measurements"] = flats
    if results.comparisons:
        line["comparisons"] = [
            {
                "label": one.label,
                "pairs": one.num_pairs,
                "equal": one.num_equal,
                "ratios": {name: ratio.value for name, ratio in one.ratios.items()},
            }
            for one in results.comparisons
        ]
    if results.searches:
        line["highest_rate"] = {name: found.passed for name, found in results.searches.items()}
    return line


def _failings(results: Results, slo: Slo | None, require_equal: bool) -> list[str]:
    found = []
    for summary in results.summaries:
        if summary.stopped:
            continue
        if not summary.outcomes:
            found.append(f"{_name(summary)}no request was due in the time measured")
        elif not summary.num_good_ends:
            found.append(f"{_name(summary)}no request was answered ({_failed(summary)})")
        elif slo is None and summary.num_failed:
            found.append(f"{_name(summary)}{_failed(summary)}")
        elif slo is not None and not _explores(results) and not summary.passes(slo):
            found.append(f"{_name(summary)}{_share(summary)} ({slo})")
    whole = [summary for summary in results.summaries if not summary.stopped]
    if slo is not None and _explores(results) and not any(one.passes(slo) for one in whole):
        found.append("no load was within the SLO")
    if results.searches:
        found = [
            f"{name or 'the server'}: even the lowest rate missed the SLO"
            for name, search in results.searches.items()
            if search.passed is None and search.failed is not None
        ]
    if require_equal:
        found += [
            f"{one.label}: {one.num_pairs - one.num_equal} of {one.num_pairs} answers differ"
            for one in results.comparisons
            if not one.all_equal
        ]
    return found


def _explores(results: Results) -> bool:
    """Whether loads were tried to see which are too high: then missing the SLO is no failure."""
    loads = {summary.load for summary in results.summaries}
    return bool(results.searches) or len(loads) > 1


def _failed(summary: Summary) -> str:
    kinds = ", ".join(
        f"{count} {name}" for name, count in summary.outcomes.items() if Outcome(name).failed
    )
    failed = f"{summary.num_failed} of {sum(summary.outcomes.values())} requests failed"
    return f"{failed}: {kinds}" if kinds else failed


def _share(summary: Summary) -> str:
    return f"{100 * (summary.good_share or 0.0):.1f} % of requests were good"


def _found(results: Results, slo: Slo | None) -> list[str]:
    lines = []
    if slo is not None and _explores(results) and not results.searches:
        lines += [
            f"{_name(summary)}{'within' if summary.passes(slo) else 'beyond'} the SLO: "
            f"{_share(summary)}"
            for summary in results.summaries
        ]
    for name, search in results.searches.items():
        if search.passed is not None:
            bound = (
                "no higher one failed" if search.failed is None else f"{search.failed:.3g} failed"
            )
            who = f"{name}: " if name else ""
            lines.append(f"{who}highest rate within the SLO {search.passed:.3g}/s ({bound})")
    lines += [
        f"{one.label}: {one.num_equal} of {one.num_pairs} pairs of answers equal, "
        f"{one.unit} by {one.unit}"
        for one in results.comparisons
    ]
    return lines


def _notes(summary: Summary, *, has_slo: bool) -> Sequence[str]:
    """What a reader should know before trusting a figure."""
    notes = []
    name = _name(summary)
    if summary.num_failed and has_slo:
        notes.append(f"{name}{_failed(summary)}")
    if summary.num_differing:
        notes.append(
            f"{name}{summary.num_differing} answers hold another number of tokens than the "
            "server's usage says"
        )
    if "chunks" in summary.sources:
        notes.append(f"{name}token counts are not known: a chunk was counted as one token")
    if summary.cached_tokens > MUCH_CACHED * summary.prompt_tokens:
        share = summary.cached_tokens / summary.prompt_tokens
        notes.append(f"{name}{100 * share:.0f} % of prompt tokens were in the server's cache")
    if summary.server is not None and summary.server.restarted:
        notes.append(f"{name}the server's counters fell: it was restarted")
    return notes


def _name(summary: Summary) -> str:
    words = " ".join(word for word in (summary.label, summary.arm) if word)
    return f"{words}: " if words else ""
