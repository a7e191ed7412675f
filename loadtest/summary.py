"""From the raw records of a measurement to its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtest.acceptance import Acceptance, acceptance
from loadtest.lab import Measurement, Stretch
from loadtest.records import Outcome, RequestRecord
from loadtest.scrape import ServerSide, server_side
from loadtest.slo import Slo
from loadtest.statistics import Distribution, Sample, distribution
from loadtest.timings import Timing, timing
from loadtest.tokenizer import TextRuler
from loadtest.tokens import TokenCounts, count_tokens
from loadtest.validity import Validity, ValidityLimits, judge

LATENCIES = ("ttft_s", "ttft_from_schedule_s", "e2e_s", "e2e_from_schedule_s", "tpot_s")


@dataclass(frozen=True)
class Judging:
    """By what a measurement is judged.

    Attributes:
        warm_up_s: requests due earlier in a stretch are left out.
        cool_down_s: so are those due in so many seconds before the last one is.
    """

    slo: Slo | None = None
    limits: ValidityLimits = field(default_factory=ValidityLimits)
    warm_up_s: float = 0.0
    cool_down_s: float = 0.0
    ruler: TextRuler | None = None


@dataclass(frozen=True)
class Measured:
    """One request inside the window, with what was derived from it."""

    record: RequestRecord
    counts: TokenCounts
    timing: Timing | None


@dataclass(frozen=True)
class Summary:
    """The figures of one measurement.

    Attributes:
        stretches: begin and end of each, on the machine's monotonic clock.
        window_s: seconds measured; rates are by it.
        outcomes: of the requests in the window.
        missed: how many answers broke each limit.
        good_share: of the requests that ended by themselves; None without an SLO.
        sources: answers by where their token counts come from.
        num_differing: answers whose counted tokens are not what the server's usage says.
        measured, outside: requests due within the window, and the others.
    """

    arm: str
    label: str
    load: float | None
    num_planned: int
    num_begun: int
    stretches: tuple[tuple[float, float], ...]
    window_s: float
    outcomes: dict[str, int]
    failures: dict[str, str]
    distributions: dict[str, Distribution]
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens: int
    cached_tokens: int
    goodput_rps: float | None
    good_share: float | None
    missed: dict[str, int]
    sources: dict[str, int]
    num_differing: int
    acceptance: Acceptance | None
    server: ServerSide | None
    validity: Validity
    stopped: bool
    measured: list[Measured] = field(repr=False)
    outside: list[Measured] = field(repr=False)

    @property
    def num_failed(self) -> int:
        return sum(count for name, count in self.outcomes.items() if Outcome(name).failed)

    @property
    def num_good_ends(self) -> int:
        return self.outcomes.get(Outcome.OK, 0)

    def passes(self, slo: Slo) -> bool:
        """Whether enough requests were good."""
        return self.good_share is not None and self.good_share >= slo.share

    def flat(self) -> dict[str, Any]:
        """The few figures that scripts want."""
        return {
            "arm": self.arm,
            "label": self.label,
            "valid": self.validity.valid,
            "stopped": self.stopped,
            "requests": sum(self.outcomes.values()),
            "completed": self.num_good_ends,
            "errors": {
                name: count for name, count in self.outcomes.items() if Outcome(name).failed
            },
            **{
                name: found.plain()
                for name, found in self.distributions.items()
                if "chunk" not in name
            },
            "tokens_per_chunk": self.distributions["tokens_per_chunk"].mean,
            "requests_per_s": self.requests_per_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "goodput_rps": self.goodput_rps,
            "good_share": self.good_share,
        }


def summarize(measurement: Measurement, judging: Judging, rng: np.random.Generator) -> Summary:
    """All figures of a measurement."""
    windows = [_window(stretch, judging) for stretch in measurement.stretches]
    everything = [
        [_measured(record, judging) for record in stretch.records]
        for stretch in measurement.stretches
    ]
    measured: list[Measured] = []
    outside: list[Measured] = []
    for (start_s, end_s), ones in zip(windows, everything, strict=True):
        for one in ones:
            is_in = start_s <= one.record.scheduled_s <= end_s
            (measured if is_in else outside).append(one)
    window_s = sum(end_s - start_s for start_s, end_s in windows)
    per_s = 1 / window_s if window_s > 0 else 0.0
    outcomes = Counter(str(one.record.outcome) for one in measured)
    timings = [one.timing for one in measured if one.timing is not None]
    missed = [judging.slo.missed(timing) for timing in timings] if judging.slo else []
    num_good = sum(not broken for broken in missed)
    num_ended = outcomes[Outcome.OK] + sum(one.record.outcome.failed for one in measured)
    answers = [one for one in measured if one.record.outcome is Outcome.OK]
    return Summary(
        arm=measurement.target.name,
        label=measurement.label,
        load=measurement.load,
        num_planned=sum(stretch.num_planned for stretch in measurement.stretches),
        num_begun=len(measurement.records),
        stretches=tuple((one.start_s, one.end_s) for one in measurement.stretches),
        window_s=window_s,
        outcomes=dict(outcomes.most_common()),
        failures=_first_details(measured),
        distributions=_distributions(timings, rng),
        requests_per_s=outcomes[Outcome.OK] * per_s,
        output_tokens_per_s=_tokens_within(everything, windows) * per_s,
        prompt_tokens=sum(one.record.prompt_tokens or 0 for one in answers),
        cached_tokens=sum(one.record.cached_tokens or 0 for one in answers),
        goodput_rps=num_good * per_s if judging.slo else None,
        good_share=num_good / num_ended if judging.slo and num_ended else None,
        missed=dict(Counter(name for broken in missed for name in broken)),
        sources=dict(Counter(str(one.counts.source) for one in answers)),
        num_differing=sum(bool(one.counts.differs_by) for one in answers),
        acceptance=acceptance([one.record for one in answers]),
        server=_server(measurement.stretches),
        validity=judge(
            measurement.records,
            [stretch.vitals for stretch in measurement.stretches],
            judging.limits,
        ),
        stopped=measurement.stopped,
        measured=measured,
        outside=outside,
    )


def _window(stretch: Stretch, judging: Judging) -> tuple[float, float]:
    """From the end of the warm-up to the begin of the cool-down, or to the last answer's end."""
    start_s = stretch.start_s + judging.warm_up_s
    if not judging.cool_down_s:
        return start_s, max(start_s, stretch.end_s)
    last_s = stretch.start_s + stretch.span_s if stretch.span_s else stretch.end_s
    return start_s, max(start_s, last_s - judging.cool_down_s)


def _measured(record: RequestRecord, judging: Judging) -> Measured:
    counts = count_tokens(record, judging.ruler)
    return Measured(record, counts, timing(record, counts))


def _tokens_within(
    everything: Sequence[Sequence[Measured]], windows: Sequence[tuple[float, float]]
) -> int:
    """Tokens that arrived within the windows, whichever request they belong to."""
    return sum(
        tokens
        for (start_s, end_s), ones in zip(windows, everything, strict=True)
        for one in ones
        for chunk, tokens in zip(one.record.chunks, one.counts.per_chunk, strict=True)
        if start_s <= chunk.at_s <= end_s
    )


def _distributions(timings: Sequence[Timing], rng: np.random.Generator) -> dict[str, Distribution]:
    samples = {
        name: Sample.of([value for one in timings if (value := getattr(one, name)) is not None])
        for name in LATENCIES
    }
    per_token = [
        [gap / tokens for gap, tokens in zip(one.gaps_s, one.gap_tokens, strict=True)]
        for one in timings
    ]
    samples["itl_token_s"] = Sample.grouped(per_token, [one.gap_tokens for one in timings])
    samples["chunk_gap_s"] = Sample.grouped([one.gaps_s for one in timings])
    samples["tokens_per_chunk"] = Sample.grouped([one.chunk_tokens for one in timings])
    return {name: distribution(sample, rng) for name, sample in samples.items()}


def _first_details(measured: Sequence[Measured]) -> dict[str, str]:
    """For each class of failure what the first of it said."""
    found: dict[str, str] = {}
    for one in measured:
        if one.record.outcome.failed:
            found.setdefault(str(one.record.outcome), one.record.detail)
    return found


def _server(stretches: Sequence[Stretch]) -> ServerSide | None:
    """Over all stretches: growth summed, gauges one after the other."""
    sides = [side for stretch in stretches if (side := server_side(stretch.scrapes)) is not None]
    if not sides:
        return None
    counters: Counter[str] = Counter()
    gauges: dict[str, list[float]] = {}
    for side in sides:
        for name, value in side.counters.items():
            counters[name] += value  # type: ignore[assignment]
        for name, values in side.gauges.items():
            gauges.setdefault(name, []).extend(values)
    times_s = [at_s for side in sides for at_s in side.times_s]
    return ServerSide(dict(counters), gauges, times_s, any(side.restarted for side in sides))
