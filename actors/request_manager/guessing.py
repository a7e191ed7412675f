"""What a step guesses: who is asked, which trees come of it, and how much of them it carries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from actors.request_manager.budget import BUDGETS, Acceptance
from actors.request_manager.config import SpeculationConfig
from actors.request_manager.drafter_worth import StepOutcome
from actors.request_manager.drafting import Drafting, DraftsByRequest, draft_task
from actors.request_manager.merge import MergedTree, merge
from actors.request_manager.ports import Drafter, DraftTask
from actors.request_manager.turns import Turn


@dataclass(frozen=True)
class Guesses:
    """What the drafters brought.

    Attributes:
        trees: by request id.
        asked: names of the drafters that were asked.
    """

    trees: Mapping[int, MergedTree] = field(default_factory=dict)
    asked: Collection[str] = ()


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

    async def ask(self, turns: Sequence[Turn]) -> Guesses:
        """One tree for each request that has drafts, cut to the request's own limits."""
        num_draws = sum(turn.draws for turn in turns)
        bar = self._budget.bar(num_draws, _num_tokens(turns))
        tasks = [task for turn in turns if (task := draft_task(turn, self._config, bar))]
        drafted = await self._drafting.ask(tasks, lambda name: self._budget.asks(name, num_draws))
        return Guesses(self._merge(tasks, drafted.drafts), drafted.asked)

    def choose(
        self, trees: Mapping[int, MergedTree], turns: Sequence[Turn], room: int
    ) -> dict[int, MergedTree]:
        """What of the trees is worth its time in a step of these turns.

        Args:
            room: draft nodes at most.
        """
        num_draws = sum(turn.draws for turn in turns)
        return self._budget.select(trees, num_draws, _num_tokens(turns), room)

    def learn(self, outcome: StepOutcome) -> None:
        """A step is over."""
        self._budget.observe(outcome)

    def forget(self, request_id: int) -> None:
        """A request is over."""
        self._drafting.forget(request_id)

    def _merge(self, tasks: Sequence[DraftTask], drafts: DraftsByRequest) -> dict[int, MergedTree]:
        trees = {}
        for task in tasks:
            by_drafter = drafts.get(task.request_id)
            if by_drafter:
                merged, rejected = merge(by_drafter, self._vocab_size, self.acceptance.probability)
                self._drafting.note_rejected(rejected)
                trees[task.request_id] = merged.cut(task.max_nodes, task.max_depth)
        return trees


def _num_tokens(turns: Sequence[Turn]) -> int:
    return sum(turn.num_tokens for turn in turns)
