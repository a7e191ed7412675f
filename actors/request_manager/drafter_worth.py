"""Whether a drafter earns the time that asking it takes: tokens per second with it and without.

Steps with the drafter and steps without it are two arms. The better one runs for long, the other
one is tried in between, so that both are measured on the same machine and the same texts; the
longer an arm has won, the rarer the trials. A trial is short where the difference is plain, and
goes on where it is not: it costs little there. What a trial has cost is made up for before the next
one, whoever's it is, so that all of them take no more than a small share of the time.

What a model of costs would miss counts too: a draft model that works through prompts, or takes
caches and cores from the LLM. Judged apart for each kind of step: by the size of its batch, as a
busy LLM makes guesses dearer; for greedy and sampled draws, as these are harder to guess; and by
the drafters that its requests allow, which may guess the same.

Several drafters take turns with their trials: what changes in a step is one drafter's doing, or
that of all at once. When one begins or ceases to be asked, the others are tried again soon.

Counts steps only; the same steps give the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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
MAX_KINDS = 256
"""Of steps; the first known are forgotten. Requests can name sets of drafters in many ways."""
MAX_CATCH_UP_STEPS = 64
"""After a pause a draft model has texts to catch up with; so many steps without a tree of its own
are not held against it."""


class StepKind(NamedTuple):
    """What steps have in common that are compared.

    Attributes:
        num_draws: requests, with a tree or without, that get a token from the step anyway.
        samples: whether most of them sample.
        drafters: names of those that the requests allow.
    """

    num_draws: int
    samples: bool = False
    drafters: frozenset[str] = frozenset()

    @property
    def rounded(self) -> StepKind:
        """Sizes of batch up to the same power of two are one kind."""
        return self._replace(num_draws=1 << self.num_draws.bit_length())


@dataclass(frozen=True)
class StepOutcome:
    """What a step and its drafts came to.

    Attributes:
        num_draws: requests that got a token from the step anyway.
        num_tokens: of the step's batch.
        num_draft_nodes: of these.
        num_committed: output tokens that it brought.
        samples, allowed: as in `StepKind`.
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
    allowed: frozenset[str] = frozenset()
    asking_s: Mapping[str, float] = field(default_factory=dict)
    considered: Collection[str] = ()
    answered: Mapping[str, int] = field(default_factory=dict)
    drafted: Mapping[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> StepKind:
        return StepKind(self.num_draws, self.samples, self.allowed)

    @property
    def only_decodes(self) -> bool:
        """False for steps that also prefill, or only release: they say nothing of decoding."""
        plain = self.num_tokens - self.num_draft_nodes
        return self.num_draws > 0 and plain == self.num_draws


class DrafterWorth:
    """All drafters' worth at every kind of step."""

    def __init__(self) -> None:
        self._contests: dict[StepKind, _Contest] = {}

    def pays(self, drafter: str, kind: StepKind) -> bool:
        """True if the drafter, one that the step allows, should be considered for it."""
        contest = self._contests.get(kind.rounded)
        if contest is None:
            if len(self._contests) == MAX_KINDS:
                del self._contests[next(iter(self._contests))]
            contest = self._contests[kind.rounded] = _Contest(kind.drafters)
        return drafter in contest.asked

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step."""
        contest = self._contests.get(outcome.kind.rounded)
        if contest is not None and outcome.only_decodes:
            contest.observe(outcome)

    def begin_anew(self, drafter: str) -> None:
        """Forget the kinds of steps that a drafter may be asked in."""
        for kind in [kind for kind in self._contests if drafter in kind.drafters]:
            del self._contests[kind]


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
    """What a trial has brought and taken, steps to catch up included."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._tokens = 0
        self._seconds = 0.0

    def add(self, outcome: StepOutcome) -> None:
        self.num_steps += 1
        self._tokens += outcome.num_committed
        self._seconds += outcome.total_s

    def steps_to_make_up(self, arm: _Arm) -> int:
        """Steps of the arm until what was lost against it is a small share of the time."""
        if not arm.tokens_per_s:
            return 0
        lost_s = self._seconds - self._tokens / arm.tokens_per_s
        return math.ceil(lost_s / (MAX_TRIAL_SHARE * arm.seconds))


@dataclass
class _Move:
    """Drafters whose part in the steps is tried the other way round.

    Attributes:
        drafters: one, or all.
        run: steps between trials.
        steps_left: until the next one is due.
    """

    drafters: frozenset[str]
    run: int = FIRST_RUN // 2  # doubled by the first trial
    steps_left: int = FIRST_LOOK

    def challenger(self, favourite: frozenset[str]) -> frozenset[str]:
        """Who is asked when it is tried."""
        is_asked = not favourite.isdisjoint(self.drafters)
        return favourite - self.drafters if is_asked else favourite | self.drafters


class _Contest:
    """Which drafters are asked at one kind of step.

    Attributes:
        asked: now.
    """

    def __init__(self, drafters: frozenset[str]) -> None:
        self.asked = self._favourite = drafters
        self._drafters = drafters
        # Drafters that answer side by side are no cheaper one by one: hence the last move.
        self._moves = [_Move(frozenset({name})) for name in sorted(drafters)]
        if len(drafters) > 1:
            self._moves.append(_Move(drafters))
        self._move: _Move | None = None  # on trial
        self._arms = {drafters: _Arm()}
        self._trial = _Trial()
        self._steps_left = 0  # of the trial
        self._steps_to_make_up = 0
        self._newcomers: frozenset[str] = frozenset()
        self._catch_up_left = 0

    def observe(self, outcome: StepOutcome) -> None:
        """A step; one that was planned before the last turn says nothing."""
        if self._drafters.intersection(outcome.considered) != self.asked:
            return
        if self._move is not None:
            self._trial.add(outcome)
        if self._newcomers and self._catch_up_left:
            self._catch_up_left -= 1
            self._newcomers -= {name for name, nodes in outcome.drafted.items() if nodes}
            if self._newcomers:
                return
        self._arms[self.asked].add(outcome.num_committed, outcome.total_s)
        if self._move is None:
            self._count_down()
            return
        self._steps_left -= 1
        if self._steps_left > 0:
            return
        if self._is_doubtful and self._trial.num_steps < LONGEST_TRIAL:
            self._steps_left = TRIAL_STEPS
        else:
            self._end_trial(self._move)

    def _count_down(self) -> None:
        for move in self._moves:
            move.steps_left -= 1
        self._steps_to_make_up -= 1
        due = min(self._moves, key=lambda move: move.steps_left, default=None)
        if due is not None and due.steps_left <= 0 >= self._steps_to_make_up:
            self._begin_trial(due)

    def _begin_trial(self, move: _Move) -> None:
        self._move = move
        self._ask(move.challenger(self._favourite))
        self._arms[self.asked] = _Arm()
        self._trial = _Trial()
        self._steps_left = TRIAL_STEPS

    def _end_trial(self, move: _Move) -> None:
        winner = self._by_size[self._lead > 0.0]
        if winner == self._favourite:
            move.run = min(2 * move.run, LONGEST_RUN)
        else:
            for other in self._moves:
                other.run, other.steps_left = FIRST_RUN // 2, FIRST_LOOK
            move.run = FIRST_RUN
        move.steps_left = move.run
        self._steps_to_make_up = self._trial.steps_to_make_up(self._arms[winner])
        self._arms = {winner: self._arms[winner]}
        self._move = None
        self._favourite = winner
        self._ask(winner)

    def _ask(self, drafters: frozenset[str]) -> None:
        self._newcomers = drafters - self.asked
        self._catch_up_left = MAX_CATCH_UP_STEPS
        self.asked = drafters

    @property
    def _by_size(self) -> list[frozenset[str]]:
        """The two sets that are compared, the smaller one first."""
        return sorted((self.asked, self._favourite), key=len)

    @property
    def _lead(self) -> float:
        """By what share of its tokens a second asking more drafters is better than a tie."""
        fewer, more = (self._arms[drafters].tokens_per_s for drafters in self._by_size)
        return 1.0 - (1.0 - TIE) * fewer / more if more else -1.0

    @property
    def _is_doubtful(self) -> bool:
        tried, favourite = self._arms[self.asked].error, self._arms[self._favourite].error
        # Of no use where it is the favourite that is not known better.
        return tried > favourite and abs(self._lead) < DOUBT * math.hypot(tried, favourite)
