"""Is a run valid? Only if the harness kept its own schedule and its clock was read in time.

These limits judge the harness, never the server: a slow server gives a valid run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadtest.records import RequestRecord
from loadtest.vitals import Vitals


@dataclass(frozen=True)
class ValidityLimits:
    """Beyond these a run is INVALID: lags in seconds at the 99th percentile, share of one core."""

    lag_p99_s: float = 0.02
    cpu_share: float = 0.8


@dataclass(frozen=True)
class Validity:
    """What was found.

    Attributes:
        problems: why the run is invalid; empty for a valid one.
        schedule_lag: how late the harness sent, in seconds; so `loop_lag` of its event loop.
        cpu_share: of one core.
    """

    problems: tuple[str, ...]
    schedule_lag: dict[str, float]
    loop_lag: dict[str, float]
    cpu_share: float

    @property
    def valid(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {"valid": self.valid, **asdict(self)}


def judge(
    records: Sequence[RequestRecord], vitals: Sequence[Vitals], limits: ValidityLimits
) -> Validity:
    """Judge the harness over one or more stretches of a run."""
    schedule = _lags([record.lag_s for record in records if record.lag_s is not None])
    loop = _lags([lag_s for stretch in vitals for lag_s in stretch.loop_lag_s])
    wall_s = sum(stretch.wall_s for stretch in vitals)
    cpu_share = sum(stretch.cpu_s for stretch in vitals) / wall_s if wall_s else 0.0
    problems = []
    for name, found in (("sent requests", schedule), ("read its clock", loop)):
        if found["p99_s"] > limits.lag_p99_s:
            problems.append(
                f"the harness {name} {1e3 * found['p99_s']:.1f} ms late at the 99th percentile "
                f"(limit {1e3 * limits.lag_p99_s:g} ms)"
            )
    if cpu_share > limits.cpu_share:
        problems.append(
            f"the harness used {100 * cpu_share:.0f} % of its core "
            f"(limit {100 * limits.cpu_share:g} %)"
        )
    return Validity(tuple(problems), schedule, loop, cpu_share)


def _lags(lags_s: Sequence[float]) -> dict[str, float]:
    """Here the 99th percentile is needed of few values too: it is then near the highest."""
    if not lags_s:
        return {"count": 0, "p50_s": 0.0, "p99_s": 0.0, "max_s": 0.0}
    p50, p99 = np.quantile(lags_s, [0.5, 0.99])
    return {
        "count": len(lags_s),
        "p50_s": float(p50),
        "p99_s": float(p99),
        "max_s": float(max(lags_s)),
    }
