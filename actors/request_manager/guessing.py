"""What a step guesses: who is asked, which trees come of it, and how much of them it carries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from actors.request_manager.budget import BUDGETS, Acceptance
from actors.request_manager.config import SpeculationConfig
from actors.request_manager.draft_gain import share_of
from actors.request_manager.drafter_names import LEARNERS, askable
from actors.request_manager.drafter_worth import StepKind, StepOutcome
from actors.request_manager.drafters import DRAFTERS, GRAMMAR
from actors.request_manager.drafting import Drafting, DraftsByRequest, draft_task
from actors.request_manager.merge import MergedTree, merge
from actors.request_manager.ports import Drafter, DraftTask, StepDraws
from actors.request_manager.request import State
from actors.request_manager.turns import Turn


class Accepted(NamedTuple):
    """The drafts of a request that were in a step, and which of their nodes were accepted."""

    drafts: MergedTree
    nodes: Sequence[int]


NO_STEP = StepKind(0)


@dataclass(frozen=True)
class Guesses:
    """What the drafters brought.

    Attributes:
        trees: by request id.
        kind: of the step, as far as it was known before anyone was asked.
        considered: names of the drafters that were asked, or might have been.
        answered: for which requests each drafter that takes time had guesses.
        promises: by request id, tokens that were expected before anyone was asked who takes time.
        asking_s: seconds until each of those who take time had answered.
    """

    trees: Mapping[int, MergedTree] = field(default_factory=dict)
    kind: StepKind = NO_STEP
    considered: Collection[str] = ()
    answered: Mapping[str, Collection[int]] = field(default_factory=dict)
    promises: Mapping[int, float] = field(default_factory=dict)
    asking_s: Mapping[str, float] = field(default_factory=dict)


class Guessing:
    """Drafters, merge and budget of one manager.

    Args:
        config: the section of the configuration.
        drafters: whom to ask.
        vocab_size: token ids are below it.

    Attributes:
        acceptance: learns what becomes of the drafts.
    """

    def __init__(
        self,
        config: SpeculationConfig,
        drafters: Sequence[Drafter],
        vocab_size: int,
    ) -> None:
        self.acceptance = Acceptance()
        self._config = config
        self._vocab_size = vocab_size
        self._drafting = Drafting(drafters, config.draft_deadline_ms / 1e3)
        self._budget = BUDGETS[config.budget]()
        self._names = list(dict.fromkeys(drafter.name for drafter in drafters))

    @property
    def learns_from_draws(self) -> bool:
        """Whether a drafter does."""
        return not LEARNERS.isdisjoint(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        """What a request may call the drafters by."""
        return askable(self._names)

    async def ask(self, turns: Sequence[Turn]) -> Guesses:
        """One tree for each request that has drafts, cut to the request's own limits.

        Drafters without a model answer at once; then those that take time are asked, side by side,
        for the requests for which that pays.
        """
        num_draws = sum(turn.draws for turn in turns)
        bar = self._budget.bar(num_draws, _num_tokens(turns))
        tasks = [task for turn in turns if (task := draft_task(turn, self._config, bar))]
        allowed = {name for name in self._names if any(_concerns(name, task) for task in tasks)}
        # Grammars take no time to speak of, and their drafts are judged one by one: no trials.
        judged = frozenset(allowed - {GRAMMAR})
        kind = StepKind(num_draws, _mostly_sampled(turns), judged)
        considered = allowed - {name for name in judged if not self._budget.considers(name, kind)}
        free, _ = await self._drafting.ask(
            tasks,
            lambda name, task: name in considered and name in DRAFTERS and _concerns(name, task),
        )
        over = {t.request.request_id for t in turns if t.request.state is State.FINISHED}
        tasks = [task for task in tasks if task.request_id not in over]  # cancelled meanwhile
        trees, faults = self._merge(tasks, free)
        promises = {request_id: tree.promise for request_id, tree in trees.items()}

        chosen = {
            name: self._budget.asks(
                name,
                {t.request_id: promises.get(t.request_id, 0.0) for t in tasks if t.allows(name)},
                num_draws,
            )
            for name in considered - DRAFTERS.keys()
        }
        drafted, asking_s = await self._drafting.ask(
            tasks, lambda name, task: task.request_id in chosen.get(name, ())
        )
        if drafted:
            trees, faults = self._merge(tasks, _joined(free, drafted))
        self._drafting.note_rejected(faults)
        return Guesses(trees, kind, considered, _by_drafter(drafted), promises, asking_s)

    def choose(
        self, trees: Mapping[int, MergedTree], turns: Sequence[Turn], room: int
    ) -> dict[int, MergedTree]:
        """What of the trees is worth its time in a step of these turns.

        Args:
            room: draft nodes at most.
        """
        num_draws = sum(turn.draws for turn in turns)
        chosen = self._budget.select(trees, num_draws, _num_tokens(turns), room)
        # What was drawn below a root is tried even if no node of it is carried.
        drawn = {key: tree.restricted(()) for key, tree in trees.items() if tree.draws}
        return drawn | chosen

    def learn(
        self,
        guesses: Guesses,
        outcome: StepOutcome,
        accepted: Mapping[int, Accepted],
        draws: Sequence[StepDraws],
    ) -> None:
        """A step is over.

        Args:
            accepted: by request id.
            draws: of the requests that drafters may learn from.
        """
        self._drafting.observe(draws)
        self._budget.observe(outcome)
        for name, request_ids in guesses.answered.items():
            for request_id in accepted.keys() & request_ids:
                share = share_of(name, *accepted[request_id])
                promise = guesses.promises.get(request_id, 0.0)
                self._budget.observe_share(name, promise, share, outcome.num_draws)

    def begin_anew(self, drafter: str) -> None:
        """Forget what was learnt of a drafter: another one has its name now."""
        self.acceptance.begin_anew(drafter)
        self._budget.begin_anew(drafter)
        self._drafting.failures.pop(drafter, None)

    def forget(self, request_id: int) -> None:
        """A request is over."""
        self._drafting.forget(request_id)

    def _merge(
        self, tasks: Sequence[DraftTask], drafts: DraftsByRequest
    ) -> tuple[dict[int, MergedTree], list[tuple[str, str]]]:
        """Trees by request id; and drafters whose drafts broke the rules, with the reason."""
        trees: dict[int, MergedTree] = {}
        faults: list[tuple[str, str]] = []
        for task in tasks:
            by_drafter = drafts.get(task.request_id)
            if by_drafter:
                estimate, rule = self.acceptance.probability, task.verification
                merged, rejected = merge(by_drafter, self._vocab_size, estimate, rule)
                faults.extend(rejected.items())
                trees[task.request_id] = merged.cut(task.max_nodes, task.max_depth)
        return trees, faults


def _concerns(name: str, task: DraftTask) -> bool:
    """True if a drafter may have something to say of a request."""
    return task.allows(name) and (name != GRAMMAR or bool(task.grammar))


def _joined(first: DraftsByRequest, second: DraftsByRequest) -> DraftsByRequest:
    ids = {**first, **second}
    return {one: first.get(one, {}) | second.get(one, {}) for one in ids}


def _by_drafter(drafts: DraftsByRequest) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for request_id, by_name in drafts.items():
        for name in by_name:
            found.setdefault(name, set()).add(request_id)
    return found


def _num_tokens(turns: Sequence[Turn]) -> int:
    return sum(turn.num_tokens for turn in turns)


def _mostly_sampled(turns: Sequence[Turn]) -> bool:
    draws = [turn for turn in turns if turn.draws]
    return 2 * sum(not turn.request.asked.sampling.is_greedy for turn in draws) > len(draws)
