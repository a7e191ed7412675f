"""Whether a drafter earns the time that asking it takes: tokens per second with it and without.

Steps with the drafter and steps without it are two arms. The better one runs for long, the other
one is tried for a few steps in between, so that both are measured on the same machine and the same
texts; the longer an arm has won, the rarer the trials. What a model of costs would miss counts too:
a draft model that works through prompts, or takes caches and cores from the LLM. Judged apart for
each size of batch, as a busy LLM makes guesses dearer.

Counts steps only; the same steps give the same decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

FORGET = 1 / 64
"""Weight of a new step in an arm's averages."""
TRIAL_STEPS = 16
FIRST_RUN, LONGEST_RUN = 128, 1024
"""Steps between trials."""
MAX_CATCH_UP_STEPS = 64
"""After a pause a draft model has texts to catch up with; so many steps without a tree of its own
are not held against it."""


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
        draft_s: of these, seconds until the drafters had answered.
        considered: drafters that might be asked, as far as requests and trials allow it; they may
            have been left out since these requests have better guesses.
        answered: for how many requests each drafter that takes time had guesses.
        drafted: nodes in the step by proposer.
    """

    num_draws: int
    num_tokens: int
    num_draft_nodes: int
    num_committed: int
    step_s: float
    total_s: float
    draft_s: float = 0.0
    considered: Collection[str] = ()
    answered: Mapping[str, int] = field(default_factory=dict)
    drafted: Mapping[str, int] = field(default_factory=dict)

    @property
    def only_decodes(self) -> bool:
        """False for steps that also prefill, or only release: they say nothing of decoding."""
        plain = self.num_tokens - self.num_draft_nodes
        return self.num_draws > 0 and plain == self.num_draws


class DrafterWorth:
    """All drafters' worth, for every size of batch up to a power of two."""

    def __init__(self) -> None:
        self._contests: defaultdict[tuple[str, int], _Contest] = defaultdict(_Contest)

    def pays(self, drafter: str, num_draws: int) -> bool:
        """True if the drafter should be considered for the next step."""
        return self._contests[drafter, num_draws.bit_length()].asks

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step."""
        if not outcome.only_decodes:
            return
        size = outcome.num_draws.bit_length()
        for (drafter, of_size), contest in self._contests.items():
            if of_size == size:
                contest.observe(outcome, drafter)


class _Arm:
    """Average tokens and seconds of the steps of one kind."""

    def __init__(self) -> None:
        self.weight = 0.0
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.weight += (1.0 - self.weight) * FORGET
        share = FORGET / self.weight
        self._tokens += share * (tokens - self._tokens)
        self._seconds += share * (seconds - self._seconds)

    def beats(self, other: _Arm) -> bool:
        """More tokens per second; True too while there is nothing to compare with."""
        return not other.weight or self._tokens * other._seconds > other._tokens * self._seconds


class _Contest:
    """One drafter at one size of batch."""

    def __init__(self) -> None:
        self.asks = True
        self._favours = True
        self._arms = {True: _Arm(), False: _Arm()}
        self._steps_left = FIRST_RUN
        self._run = FIRST_RUN
        self._catch_up_left = 0

    def observe(self, outcome: StepOutcome, drafter: str) -> None:
        """A step with or without the drafter; a request's own wish may decide it too."""
        asked = drafter in outcome.considered
        if asked and self._catch_up_left:
            self._catch_up_left -= 1
            if not outcome.drafted.get(drafter):
                return
            self._catch_up_left = 0
        self._arms[asked].add(outcome.num_committed, outcome.total_s)
        if asked == self.asks:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self._turn()

    def _turn(self) -> None:
        if self.asks == self._favours:  # a run is over: try the other arm
            self.asks, self._steps_left = not self.asks, TRIAL_STEPS
        else:
            favours = self._arms[True].beats(self._arms[False])
            same = favours == self._favours
            self._run = min(2 * self._run, LONGEST_RUN) if same else FIRST_RUN
            self.asks = self._favours = favours
            self._steps_left = self._run
        if self.asks:
            self._catch_up_left = MAX_CATCH_UP_STEPS
