"""Several drafters that are one: replicas of one draft model, and which of them has which request.

A request stays with its replica, which holds its text already, as long as that one is there; then
it goes to another, which is sent the text anew. New ones go to the replica with the fewest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.request_manager.ports import Drafter, DraftTask, Learner, StepDraws


@dataclass
class Replicas:
    """Drafters of one name.

    Attributes:
        drafters: at least one.
    """

    drafters: Sequence[Drafter]
    _places: dict[int, int] = field(default_factory=dict)  # by request id

    def split(self, tasks: Sequence[DraftTask]) -> list[tuple[Drafter, list[DraftTask]]]:
        """Who is to be asked for what; those without a task are left out."""
        if len(self.drafters) == 1:
            return [(self.drafters[0], list(tasks))] if tasks else []
        parts: dict[int, list[DraftTask]] = {}
        for task in tasks:
            parts.setdefault(self._place(task.request_id), []).append(task)
        return [(self.drafters[place], part) for place, part in parts.items()]

    def forget(self, request_id: int) -> None:
        """The request is over."""
        self._places.pop(request_id, None)
        for drafter in self.drafters:
            drafter.forget(request_id)

    def observe(self, steps: Sequence[StepDraws]) -> None:
        """A step is over; tells those who learn from it."""
        for drafter in self.drafters:
            if isinstance(drafter, Learner):
                drafter.observe(steps)

    def _place(self, request_id: int) -> int:
        place = self._places.get(request_id)
        if place is None or self.drafters[place].is_away:
            held = Counter(self._places.values())
            choice = [p for p, one in enumerate(self.drafters) if not one.is_away]
            place = min(choice or range(len(self.drafters)), key=lambda p: held[p])
            self._places[request_id] = place
        return place


def by_name(drafters: Sequence[Drafter]) -> dict[str, Replicas]:
    """Drafters of one name taken together, in order of first appearance."""
    found: dict[str, list[Drafter]] = {}
    for drafter in drafters:
        found.setdefault(drafter.name, []).append(drafter)
    return {name: Replicas(same) for name, same in found.items()}
