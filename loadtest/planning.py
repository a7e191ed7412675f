"""Plans for each load of an experiment: arrivals or trace, and workload, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from loadtest.arrivals import ArrivalSpec, check_arrivals, schedule
from loadtest.errors import UsageError
from loadtest.plan import Plan
from loadtest.synthetic import Filler
from loadtest.tokenizer import ExactRuler, RoughRuler
from loadtest.traces import Scaling, TraceRow, scale
from loadtest.workload import PlanMaker, WorkloadSpec

TEMPLATE_TOKENS = 64
"""Room left in the context for the model's chat template."""
ROUGH_SHARE = 0.75
"""Share of the context that is used where lengths are only guessed."""


@dataclass
class Planner:
    """Makes the plan of each load.

    Attributes:
        arrivals: of an open loop; its rate is replaced by the load. None for a closed loop.
        trace: rows to replay, and its name.
        replay: a saved plan, which stands for everything else.
        max_context: of the server, for clipping traces.
    """

    workload: WorkloadSpec
    seed: int
    arrivals: ArrivalSpec | None
    num_requests: int | None = None
    trace: Sequence[TraceRow] = ()
    trace_name: str = ""
    length_scale: float = 1.0
    replay: Plan | None = None
    ruler: ExactRuler | None = None
    max_context: int | None = None
    notes: tuple[str, ...] = ()
    _maker: PlanMaker | None = field(default=None, repr=False)
    _num_made: int = 0

    def check(self, load: float | None) -> None:
        """Whether there can be a plan.

        Raises:
            UsageError: naming what is missing.
        """
        if self.replay is not None:
            return
        if not self.workload.prompts and self.workload.prompt_tokens is None:
            raise UsageError("give --workload or --prompt-tokens")
        if self.trace:
            return
        if self.arrivals is None:
            if self.num_requests is None:
                raise UsageError("--arrivals closed needs --requests")
        elif load is None:
            raise UsageError("give --rate")
        else:
            check_arrivals(replace(self.arrivals, rate=load))

    def plan(self, load: float | None) -> Plan:
        """The next plan, once `check` has passed: its own arrivals, and prompts that no plan before
        it had.

        Args:
            load: requests a second of an open loop; ignored otherwise.
        """
        if self.replay is not None:
            return self.replay
        rng = np.random.default_rng([self.seed, self._num_made])
        self._num_made += 1
        maker = self._maker = self._maker or self._new_maker()
        if self.trace:
            return self._traced(maker, load)
        if self.arrivals is None or load is None:
            return maker.plan([None] * (self.num_requests or 0), notes=self.notes)
        return maker.plan(schedule(replace(self.arrivals, rate=load), rng), notes=self.notes)

    def _new_maker(self) -> PlanMaker:
        passages = [prompt.text for prompt in self.workload.prompts]
        filler = Filler(self.ruler or RoughRuler(), self.seed, passages)
        rng = np.random.default_rng([self.seed, 1 << 32])
        return PlanMaker(self.workload, filler, rng, self.length_scale)

    def _traced(self, maker: PlanMaker, load: float | None) -> Plan:
        limit = self.max_context
        if limit is not None:
            limit = limit if self.ruler else int(limit * ROUGH_SHARE)
            limit = max(2, limit - TEMPLATE_TOKENS)
        scaled = scale(self._rows(load), Scaling(load, self.length_scale, limit))
        clipped = "not clipped: the server tells no context"
        if limit is not None:
            clipped = f"{scaled.num_clipped} clipped to {limit} tokens for prompt and output"
        note = (
            f"trace {self.trace_name}: {len(scaled.rows)} rows, times by {scaled.time_factor:.4g}, "
            f"lengths by {self.length_scale:g}, {clipped}"
        )
        return maker.plan([row.at_s for row in scaled.rows], scaled.rows, (*self.notes, note))

    def _rows(self, load: float | None) -> Sequence[TraceRow]:
        """As many as the limits ask for."""
        duration_s = None if self.arrivals is None else self.arrivals.duration_s
        rows = self.trace[: self.num_requests]
        if duration_s is None:
            return rows
        if load is not None:
            return rows[: max(1, round(load * duration_s))]
        return [row for row in rows if row.at_s < duration_s] or rows[:1]
