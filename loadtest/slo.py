"""Service level objectives: limits that a request must keep to count as good.

A failed request is not good, so it counts in the denominator. A request that the workload hung up
on, or that the end of the run cut off, is neither good nor bad and is left out.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.errors import UsageError
from loadtest.numerals import above_zero
from loadtest.timings import Timing

MEASURES: dict[str, tuple[str, Callable[[Timing], float | None]]] = {
    "ttft": ("TTFT from the schedule", lambda timing: timing.ttft_from_schedule_s),
    "ttft_send": ("TTFT from the sending", lambda timing: timing.ttft_s),
    "tpot": ("TPOT", lambda timing: timing.tpot_s),
    "e2e": ("end to end from the schedule", lambda timing: timing.e2e_from_schedule_s),
    "e2e_send": ("end to end from the sending", lambda timing: timing.e2e_s),
    "gap": ("longest gap between deliveries", lambda timing: timing.longest_gap_s),
}


@dataclass(frozen=True)
class Slo:
    """Limits in seconds by measure, all of which a good request keeps.

    Attributes:
        share: of requests that must be good for the run to pass.
    """

    limits_s: dict[str, float]
    share: float = 0.9

    @classmethod
    def parse(cls, text: str, share: float) -> Slo:
        """Out of `ttft=1.0,tpot=0.06`.

        Raises:
            UsageError: for an unknown measure, or a limit that is no positive number.
        """
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            if name.strip() not in MEASURES:
                raise UsageError(f"--slo {part}: not one of {', '.join(MEASURES)}")
            try:
                limits[name.strip()] = above_zero(value)
            except ArgumentTypeError as error:
                raise UsageError(f"--slo {part}: seconds: {error}") from None
        if not 0 < share <= 1:
            raise UsageError("--slo-share: above 0, at most 1")
        return cls(limits, share)

    def missed(self, timing: Timing) -> list[str]:
        """The measures whose limit an answer broke."""
        return [
            name
            for name, limit_s in self.limits_s.items()
            if (value := MEASURES[name][1](timing)) is not None and value > limit_s
        ]

    def __str__(self) -> str:
        limits = [f"{MEASURES[name][0]} ≤ {limit:g} s" for name, limit in self.limits_s.items()]
        return f"{', '.join(limits)} for {100 * self.share:g} % of requests"
