"""Whether a drafter earns the time that asking it takes: tokens per second with it and without.

Steps with the drafter and steps without it are two arms. The better one runs for long, the other
one is tried in between, so that both are measured on the same machine and the same texts; the
longer an arm has won, the rarer the trials. A trial is short where the difference is plain, and
goes on where it is not: it costs little there. What a trial has cost is made up for before the next
one, so that all of them take no more than a small share of the time.

What a model of costs would miss counts too: a draft model that works through prompts, or takes
caches and cores from the LLM. Judged apart for each size of batch, as a busy LLM makes guesses
dearer, and for greedy and sampled draws, as these are harder to guess.

Several drafters take turns with their trials: what changes in a step is one drafter's doing. When
one begins or ceases to be asked, what is known of the others is not true any more.

Counts steps only; the same steps give the same decisions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

FORGET = 1 / 256
"""Weight of a new step in an arm's averages."""
TIE = 0.01
"""Arms that differ by less cannot be told apart; the drafter is asked then, for fewer LLM steps."""
TRIAL_STEPS, LONGEST_TRIAL = 16, 256
FIRST_LOOK = 32
"""Steps before the first trial."""
FIRST_RUN, LONGEST_RUN = 128, 1024
"""Steps between trials, for all that they cost."""
MAX_TRIAL_SHARE = 0.02
"""Of the time."""
DOUBT = 2.0
"""Standard errors within which a difference is not plain."""
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
        samples: whether most of the draws are sampled, not greedy.
        step_s: seconds in the LLM.
        total_s: seconds from asking the drafters until the next step may begin.
        asking_s: seconds until each drafter that takes time had answered; they answer side by side.
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
    samples: bool = False
    asking_s: Mapping[str, float] = field(default_factory=dict)
    considered: Collection[str] = ()
    answered: Mapping[str, int] = field(default_factory=dict)
    drafted: Mapping[str, int] = field(default_factory=dict)

    @property
    def only_decodes(self) -> bool:
        """False for steps that also prefill, or only release: they say nothing of decoding."""
        plain = self.num_tokens - self.num_draft_nodes
        return self.num_draws > 0 and plain == self.num_draws


_Kind = tuple[int, bool]
"""Size of batch up to a power of two, and whether it samples."""


class DrafterWorth:
    """All drafters' worth, for every size of batch up to a power of two and both kinds of draws."""

    def __init__(self) -> None:
        self._contests: defaultdict[_Kind, _Contests] = defaultdict(_Contests)

    def pays(self, drafter: str, num_draws: int, samples: bool) -> bool:
        """True if the drafter should be considered for the next step."""
        return self._contests[num_draws.bit_length(), samples].of(drafter).asks

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step."""
        if outcome.only_decodes:
            self._contests[outcome.num_draws.bit_length(), outcome.samples].observe(outcome)


class _Contests:
    """All drafters at one kind of step, at most one of them on trial."""

    def __init__(self) -> None:
        self._of: dict[str, _Contest] = {}

    def of(self, drafter: str) -> _Contest:
        return self._of.setdefault(drafter, _Contest())

    def observe(self, outcome: StepOutcome) -> None:
        trial = next((name for name, one in self._of.items() if one.is_on_trial), None)
        if trial is not None:
            if self._of[trial].observe(outcome, trial):
                for name, one in self._of.items():
                    if name != trial:
                        one.begin_anew()
            return
        for name, one in self._of.items():
            one.observe(outcome, name)
        due = max(self._of.values(), key=lambda one: one.num_overdue, default=None)
        if due is not None and due.num_overdue >= 0:
            due.begin_trial()


class _Arm:
    """Average tokens and seconds of the steps of one kind.

    Attributes:
        seconds: of a step.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._weight = 0.0
        self._tokens = 0.0
        self._squares = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self._weight += (1.0 - self._weight) * FORGET
        share = FORGET / self._weight
        self._tokens += share * (tokens - self._tokens)
        self._squares += share * (tokens * tokens - self._squares)
        self.seconds += share * (seconds - self.seconds)

    @property
    def tokens_per_s(self) -> float:
        """0 before anything was added."""
        return self._tokens / self.seconds if self.seconds else 0.0

    @property
    def error(self) -> float:
        """Standard error of `tokens_per_s` relative to it, as far as tokens vary."""
        if not self._tokens:
            return 1.0
        variance = max(self._squares - self._tokens * self._tokens, 0.0)
        return math.sqrt(variance * FORGET / self._weight) / self._tokens


class _Trial:
    """What a trial has brought and taken, steps to catch up included.

    Attributes:
        num_steps: of the trial.
        num_others: steps meanwhile that took the other arm, as their requests wished.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_others = 0
        self._tokens = 0
        self._seconds = 0.0

    def add(self, outcome: StepOutcome, is_of_it: bool) -> None:
        if not is_of_it:
            self.num_others += 1
            return
        self.num_steps += 1
        self._tokens += outcome.num_committed
        self._seconds += outcome.total_s

    def steps_to_make_up(self, arm: _Arm) -> int:
        """Steps of the arm until what was lost against it is a small share of the time."""
        if not arm.tokens_per_s:
            return 0
        lost_s = self._seconds - self._tokens / arm.tokens_per_s
        return math.ceil(lost_s / (MAX_TRIAL_SHARE * arm.seconds))


class _Contest:
    """One drafter at one kind of step.

    Attributes:
        asks: whether the drafter is considered now.
    """

    def __init__(self) -> None:
        self.asks = True
        self._favours = True
        self._catch_up_left = 0
        self._trial = _Trial()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Nothing is known but the favourite."""
        self._arms = {True: _Arm(), False: _Arm()}
        self._steps_left = FIRST_LOOK
        self._run = FIRST_RUN // 2  # doubled by the first trial

    @property
    def is_on_trial(self) -> bool:
        return self.asks != self._favours

    @property
    def num_overdue(self) -> int:
        """Steps since the run was over; below 0 while it goes on."""
        return -self._steps_left

    def begin_trial(self) -> None:
        """Try the other arm, afresh."""
        self.asks = not self.asks
        self._arms[self.asks] = _Arm()
        self._steps_left = TRIAL_STEPS
        self._trial = _Trial()
        self._catch_up_left = MAX_CATCH_UP_STEPS if self.asks else 0

    def observe(self, outcome: StepOutcome, drafter: str) -> bool:
        """A step with or without the drafter; a request's own wish may decide it too.

        Returns:
            True if the favourite is another one now.
        """
        asked = drafter in outcome.considered
        if self.is_on_trial:
            self._trial.add(outcome, is_of_it=asked == self.asks)
        if asked and self._catch_up_left:
            self._catch_up_left -= 1
            if not outcome.drafted.get(drafter):
                return False
            self._catch_up_left = 0
        self._arms[asked].add(outcome.num_committed, outcome.total_s)
        if asked == self.asks:
            self._steps_left -= 1
        if not self.is_on_trial:
            return False
        if self._trial.num_others > LONGEST_TRIAL:  # requests do not allow it
            self._end_trial(favours=self._favours)
            return False
        if self._steps_left > 0:
            return False
        if self._is_doubtful and self._trial.num_steps < LONGEST_TRIAL:
            self._steps_left = TRIAL_STEPS
            return False
        return self._end_trial(favours=self._lead > 0.0)

    def _end_trial(self, favours: bool) -> bool:
        """Returns True if the favourite is another one now."""
        changes = favours != self._favours
        self._run = FIRST_RUN if changes else min(2 * self._run, LONGEST_RUN)
        self.asks = self._favours = favours
        self._steps_left = max(self._run, self._trial.steps_to_make_up(self._arms[favours]))
        if favours and not changes:
            self._catch_up_left = MAX_CATCH_UP_STEPS
        return changes

    @property
    def _lead(self) -> float:
        """By what share of its tokens a second asking is better than a tie."""
        asking, leaving = self._arms[True].tokens_per_s, self._arms[False].tokens_per_s
        return 1.0 - (1.0 - TIE) * leaving / asking if asking else -1.0

    @property
    def _is_doubtful(self) -> bool:
        tried, favourite = self._arms[self.asks].error, self._arms[self._favours].error
        # Of no use where it is the favourite that is not known better.
        return tried > favourite and abs(self._lead) < DOUBT * math.hypot(tried, favourite)
