"""N-gram tables: which tokens has the LLM drawn behind these before?

Counts the LLM's next token behind the last one and the last two, of all requests, and grows the
likeliest tree of these. As in Token Recycling (Luo et al. 2024) nothing that the LLM says goes to
waste: what it drew at nodes that were not accepted is counted as well. There the LLM's most
probable tokens at each node fill the table; here its draws do, since nothing else comes back from
the ranks. A step's counting has its time too: requests take turns, and what is left is dropped.

Unlike copies of a text, what it proposes may never have been written. The lengths of context are
weighed after Witten and Bell (1991): the more often a context was followed by a token seen before,
the more its counts are believed.

Assumes nothing of the model. Counts change how soon tokens arrive, never which; requests that do
not let this drafter be asked are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from actors.request_manager.drafter_names import NGRAM
from actors.request_manager.drafters.best_first import Limits, best_first
from actors.request_manager.drafters.fair_time import FairTime
from actors.request_manager.drafters.ngram_table import NgramTable
from actors.request_manager.ports import Clock, Draft, DraftTask, StepDraws
from actors.tree import CONTEXT

LENGTHS = (2, 1)
"""Of contexts, in tokens; the longest first."""
MAX_NODES = 8
"""Of a tree; more cost more time than they bring."""
MAX_STEP_S = 0.003
"""Of the processor's time, for the drafts of all requests in one step."""
MAX_LEARN_S = 0.001
"""Of the processor's time, to count what one step brought."""

Context = tuple[int, ...]


class NgramTables:
    """A drafter that counts what the LLM has drawn.

    Args:
        memory_bytes: for all tables together.
        clock: seconds of the processor's time.
    """

    name = NGRAM
    is_away = False

    def __init__(self, memory_bytes: int, clock: Clock = time.thread_time) -> None:
        self._time = FairTime(MAX_STEP_S, clock)
        self._learning = FairTime(MAX_LEARN_S, clock)
        self._tables = {n: NgramTable(memory_bytes // len(LENGTHS)) for n in LENGTHS}

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        """Drafts for the tasks whose last tokens are known."""
        found = {task.request_id: self._draft(task) for task in self._time.turns(tasks)}
        return {request_id: draft for request_id, draft in found.items() if draft is not None}

    def observe(self, steps: Sequence[StepDraws]) -> None:
        """Count what the LLM drew, as far as there is time."""
        for step in self._learning.turns(steps):
            end = step.root + 1
            contexts = {CONTEXT: tuple(step.token_ids[max(0, end - max(LENGTHS)) : end])}
            for node, (token, parent) in enumerate(
                zip(step.tree.token_ids, step.tree.parents, strict=True)
            ):
                contexts[node] = _last((*contexts[parent], token))
            for node, token in step.drawn_ids.items():
                self._count(contexts[node], token)

    def forget(self, request_id: int) -> None:
        """Nothing is kept for one request."""

    def _draft(self, task: DraftTask) -> Draft | None:
        limits = Limits(min(task.max_nodes, MAX_NODES), task.max_depth, task.least_probability)
        return best_first(_last(task.token_ids), self._ways, limits)

    def _count(self, context: Context, token: int) -> None:
        for length, table in self._tables.items():
            if len(context) >= length:
                table.add(context[-length:], token)

    def _ways(self, context: Context) -> Iterator[tuple[int, float, Context]]:
        """The tokens that may follow, with their probabilities and the contexts behind them."""
        odds: dict[int, float] = {}
        rest = 1.0
        for length, table in self._tables.items():
            ways = list(table.ways(context[-length:])) if len(context) >= length else []
            if not ways:
                continue
            total = sum(count for _, count in ways) + len(ways)
            for token, count in ways:
                odds[token] = odds.get(token, 0.0) + rest * count / total
            rest *= len(ways) / total
        for token, score in odds.items():
            yield token, score, _last((*context, token))


def _last(tokens: Sequence[int]) -> Context:
    """As many as the longest context has."""
    return tuple(tokens[-max(LENGTHS) :])
