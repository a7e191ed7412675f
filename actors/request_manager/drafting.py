"""Asks the drafters, side by side and under one deadline. Fails open: who is late, dead or wrong
is left out of the step, and the step goes on."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from actors.request_manager.budget import Bar
from actors.request_manager.config import SpeculationConfig
from actors.request_manager.drafter_names import LEARNERS
from actors.request_manager.ports import Draft, Drafter, DraftTask, StepDraws
from actors.request_manager.replicas import by_name
from actors.request_manager.turns import Turn

logger = logging.getLogger(__name__)

DraftsByRequest = dict[int, dict[str, Draft]]
"""Drafts by request id and drafter name."""


class Answers(NamedTuple):
    """What drafters that were asked together brought.

    Attributes:
        drafts: of those who answered.
        seconds: by drafter, until it had answered, or was given up; of several replicas, the last.
    """

    drafts: DraftsByRequest
    seconds: Mapping[str, float]


class Drafting:
    """The drafters of one manager.

    Args:
        drafters: whom to ask.
        deadline_s: how long to wait for all of them.

    Attributes:
        failures: how often each drafter raised or was late.
    """

    def __init__(self, drafters: Sequence[Drafter], deadline_s: float) -> None:
        self._drafters = by_name(drafters)
        self._deadline_s = deadline_s
        self.failures: Counter[str] = Counter()

    async def ask(
        self, tasks: Sequence[DraftTask], wanted: Callable[[str, DraftTask], bool]
    ) -> Answers:
        """Drafts for all tasks from all drafters that they allow.

        Args:
            wanted: whether a drafter, by name, should be asked for a task.
        """
        calls: dict[asyncio.Task[Mapping[int, Draft]], str] = {}
        answered: DraftsByRequest = {}
        seconds: dict[str, float] = {}
        clock = asyncio.get_running_loop().time
        since = clock()

        def note_time(call: asyncio.Task[Mapping[int, Draft]]) -> None:
            seconds[calls[call]] = clock() - since  # the last replica's stands

        for name, replicas in self._drafters.items():
            chosen = [task for task in tasks if task.allows(name) and wanted(name, task)]
            for drafter, part in replicas.split(chosen):
                call = asyncio.ensure_future(drafter.draft(part))
                calls[call] = name
                call.add_done_callback(note_time)
        if not calls:
            return Answers(answered, seconds)
        _, late = await asyncio.wait(calls, timeout=self._deadline_s)
        for call in late:
            call.cancel()
            self._note_failure(calls[call], "late")
        for call in calls:  # in the order of the configuration
            if call in late:
                continue
            error = call.exception() if not call.cancelled() else asyncio.CancelledError()
            if error is not None:
                self._note_failure(calls[call], repr(error))
                continue
            for request_id, draft in call.result().items():
                answered.setdefault(request_id, {})[calls[call]] = draft
        return Answers(answered, seconds | {calls[call]: clock() - since for call in late})

    def note_rejected(self, faults: Iterable[tuple[str, str]]) -> None:
        """Drafts that broke the rules: drafter and reason."""
        for name, fault in faults:
            self._note_failure(name, fault)

    def observe(self, steps: Sequence[StepDraws]) -> None:
        """A step is over; those that learn do from the requests that they might be asked for."""
        for name in self._drafters.keys() & LEARNERS:
            replicas = self._drafters[name]
            replicas.observe([step for step in steps if step.allows(name)])

    def forget(self, request_id: int) -> None:
        """A request is over."""
        for replicas in self._drafters.values():
            replicas.forget(request_id)

    def _note_failure(self, name: str, what: str) -> None:
        self.failures[name] += 1
        # Powers of two: a dead drafter must not fill the log.
        if self.failures[name] & (self.failures[name] - 1) == 0:
            logger.warning(
                "drafter %s left out of a step (%d so far): %s", name, self.failures[name], what
            )


def draft_task(turn: Turn, config: SpeculationConfig, bar: Bar) -> DraftTask | None:
    """What to ask for a turn; None if drafts have no place in it."""
    request = turn.request
    wishes = request.asked.speculation
    max_nodes = config.max_tree_nodes
    if wishes.max_nodes is not None:
        max_nodes = min(max_nodes, wishes.max_nodes)
    # The bonus takes the last place of the output.
    max_depth = min(config.max_depth, request.max_total_tokens - len(request.tokens) - 1)
    if not (turn.is_decode and wishes.enabled and max_nodes > 0 and max_depth > 0):
        return None
    return DraftTask(
        request_id=request.request_id,
        token_ids=request.tokens,
        prompt_len=request.prompt_len,
        sampling=request.asked.sampling,
        max_nodes=max_nodes,
        max_depth=max_depth,
        least_probability=bar.least_probability,
        tokens_per_s=bar.tokens_per_s,
        drafters=wishes.drafters,
        is_shown=request.shows_drafts,
        banned_early=request.banned_early,
        grammar=request.asked.grammar,
        verification=request.verification,
    )
