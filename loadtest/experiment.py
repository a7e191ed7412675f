"""What is measured, in which order: one load, a sweep of loads, or a search for the highest.

Each load is measured with every arm, on the same plan. What was measured is summarised at once, so
that a search can go on from it; the harness's clock is not running then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from loadtest.compare import Comparison, compare
from loadtest.lab import Lab, Measurement, RunSettings
from loadtest.plan import Plan
from loadtest.planning import Planner
from loadtest.search import SearchResult, highest_rate
from loadtest.slo import Slo
from loadtest.summary import Judging, Summary, summarize
from loadtest.target import Target


@dataclass(frozen=True)
class SearchBounds:
    """Between which rates to search, and how closely."""

    low: float
    high: float
    tolerance: float


@dataclass(frozen=True)
class Experiment:
    """What to do.

    Attributes:
        loads: requests a second, or users of a closed loop; [None] for a schedule with its own.
        search: instead of `loads`.
        num_blocks: in which several arms take turns.
    """

    targets: Sequence[Target]
    planner: Planner
    settings: RunSettings
    judging: Judging
    loads: Sequence[float | None] = (None,)
    search: SearchBounds | None = None
    is_open: bool = True
    num_blocks: int = 4


@dataclass
class Results:
    """What came of it; grows while the experiment runs, so that an interrupted one has its part."""

    plans: list[Plan] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    searches: dict[str, SearchResult] = field(default_factory=dict)


async def perform(experiment: Experiment, lab: Lab, results: Results) -> None:
    """Do it all, or as much as the lab is let."""
    run = _Run(experiment, lab, results)
    if experiment.search is None:
        for load in experiment.loads:
            if not lab.stopped:
                await run.measure(experiment.targets, load)
        return
    for target in experiment.targets:
        if not lab.stopped:
            results.searches[target.name] = await run.search(target, experiment.search)


class _Run:
    """An experiment under way."""

    def __init__(self, experiment: Experiment, lab: Lab, results: Results) -> None:
        self._experiment = experiment
        self._lab = lab
        self._results = results
        self._rng = np.random.default_rng([experiment.planner.seed, 1 << 33])

    async def measure(self, targets: Sequence[Target], load: float | None) -> list[Summary]:
        """All arms at one load."""
        experiment, results = self._experiment, self._results
        plan = experiment.planner.plan(load)
        results.plans.append(plan)
        settings = experiment.settings
        if not experiment.is_open and load is not None:
            settings = replace(settings, num_users=round(load))
        found = await self._lab.measure(
            targets, plan, settings, self._label(load), load, experiment.num_blocks
        )
        summaries = [summarize(one, experiment.judging, self._rng) for one in found]
        results.measurements += found
        results.summaries += summaries
        if len(summaries) == 2:
            results.comparisons.append(compare(summaries[0], summaries[1], self._rng))
        return summaries

    async def search(self, target: Target, bounds: SearchBounds) -> SearchResult:
        """The highest rate of one arm."""

        async def passes(rate: float) -> bool | None:
            (summary,) = await self.measure([target], rate)
            slo = self._experiment.judging.slo or Slo({})
            return None if summary.stopped else summary.passes(slo)

        return await highest_rate(passes, bounds.low, bounds.high, bounds.tolerance)

    def _label(self, load: float | None) -> str:
        if load is None:
            return "replay"
        return f"{load:.3g}/s" if self._experiment.is_open else f"{round(load)} users"
