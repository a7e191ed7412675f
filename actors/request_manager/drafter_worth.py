"""Whether a drafter earns the time that asking it takes.

With a drafter, steps bring E tokens in S seconds on average. Without it they would bring E - g in
S - c: g counts the accepted nodes that nobody else proposed, c is how much longer its answer takes
than the others', and what the LLM spends on nodes that it alone proposed. It pays while
E / S > (E - g) / (S - c), that is g / E > c / S.

A drafter that does not pay is left alone, and tried again from time to time, the less often the
more often it has failed. Judged apart for each size of batch, as a busy LLM makes guesses dearer.
Counts steps only; the same steps give the same decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

FORGET = 1 / 64
"""Weight of a new step in an average."""
ENOUGH_STEPS = 48
"""Steps before a drafter that is asked can be dropped."""
TRIAL_STEPS = 16
FIRST_PAUSE, LONGEST_PAUSE = 64, 1024
"""Steps between trials."""
DROP_BELOW, TAKE_ABOVE = 0.95, 1.05
"""Of (g / E) / (c / S); between them nothing changes."""


@dataclass(frozen=True)
class StepOutcome:
    """What a step and its drafts came to.

    Attributes:
        num_draws: requests that got a token from the step anyway.
        num_tokens: of the step's batch.
        num_draft_nodes: of these.
        num_committed: output tokens that it brought.
        step_s: seconds in the LLM.
        total_s: seconds from asking the drafters to the end of the step.
        answer_s: seconds until each drafter that was asked had answered.
        sole_nodes, sole_accepted: nodes in the step, and accepted ones, that a drafter alone
            proposed.
    """

    num_draws: int
    num_tokens: int
    num_draft_nodes: int
    num_committed: int
    step_s: float
    total_s: float
    answer_s: Mapping[str, float] = field(default_factory=dict)
    sole_nodes: Mapping[str, int] = field(default_factory=dict)
    sole_accepted: Mapping[str, int] = field(default_factory=dict)


class DrafterWorth:
    """All drafters' worth, for every size of batch up to a power of two."""

    def __init__(self) -> None:
        self._ledgers: defaultdict[tuple[str, int], _Ledger] = defaultdict(_Ledger)

    def pays(self, drafter: str, num_draws: int) -> bool:
        """True if the drafter should be asked for the next step."""
        return self._ledgers[drafter, num_draws.bit_length()].asked

    def observe(self, outcome: StepOutcome, seconds_per_token: float) -> None:
        """Learn from a step; one that also prefills says nothing about decoding.

        Args:
            seconds_per_token: what one more node in a step costs.
        """
        if outcome.num_tokens - outcome.num_draft_nodes > outcome.num_draws:
            return
        size = outcome.num_draws.bit_length()
        for (drafter, of_size), ledger in self._ledgers.items():
            if of_size != size:
                continue
            if drafter not in outcome.answer_s:
                ledger.rest()
                continue
            others = [s for name, s in outcome.answer_s.items() if name != drafter]
            waited = max(outcome.answer_s[drafter] - max(others, default=0.0), 0.0)
            verified = seconds_per_token * outcome.sole_nodes.get(drafter, 0)
            ledger.work(
                outcome.num_committed,
                outcome.total_s,
                outcome.sole_accepted.get(drafter, 0),
                waited + verified,
            )


class _Ledger:
    """One drafter's averages at one size of batch."""

    def __init__(self) -> None:
        self.asked = True
        self._on_trial = False
        self._steps_left = ENOUGH_STEPS
        self._pause = FIRST_PAUSE
        self._fresh = False  # its sessions have fallen behind: the first answer is no measure
        self._averages = [0.0] * 4  # E, S, g, c
        self._weight = 0.0

    def rest(self) -> None:
        """A step without it, perhaps by a request's wish."""
        if not self.asked:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self.asked = self._on_trial = self._fresh = True
                self._steps_left = TRIAL_STEPS

    def work(self, tokens: float, seconds: float, gain: float, cost: float) -> None:
        """A step with it."""
        if self._fresh:
            self._fresh = False
            return
        self._weight += (1.0 - self._weight) * FORGET
        share = FORGET / self._weight
        for place, value in enumerate((tokens, seconds, gain, cost)):
            self._averages[place] += share * (value - self._averages[place])
        self._steps_left -= 1
        if self._steps_left <= 0:
            self._judge()

    def _judge(self) -> None:
        tokens, seconds, gain, cost = self._averages
        merit, price = gain * seconds, cost * tokens
        if self._on_trial:
            if merit > TAKE_ABOVE * price:
                self._on_trial, self._pause, self._steps_left = False, FIRST_PAUSE, ENOUGH_STEPS
            else:
                self._drop(min(2 * self._pause, LONGEST_PAUSE))
        elif merit < DROP_BELOW * price:
            self._drop(FIRST_PAUSE)

    def _drop(self, pause: int) -> None:
        self.asked = self._on_trial = False
        self._pause = self._steps_left = pause
