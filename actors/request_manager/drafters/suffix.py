"""Suffix decoding: what followed where this text, or an earlier answer, has read like this?

After "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications" (Oliaro et al.,
NeurIPS 2025): the request's own text and earlier answers, whoever asked for them, grow one tree,
the likeliest nodes first. Earlier answers are kept within bounds (`earlier_answers`), each with the
end of its prompt, by which its first words are found. Long answers are kept as pieces, each an
answer of its own: they come and go alone, and no match reaches from one into the next.

Assumes nothing of the model. Earlier answers change how soon tokens arrive, never which. Their text
stays where it is, but who counts accepted drafts, or measures time, may learn that something like
it was answered before. Nothing is kept of requests that do not let this drafter be asked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

from actors.request_manager.drafter_names import SUFFIX
from actors.request_manager.drafters.best_first import Limits, best_first
from actors.request_manager.drafters.earlier_answers import EarlierAnswers
from actors.request_manager.drafters.fair_time import FairTime
from actors.request_manager.drafters.matches import Alike, ways_on
from actors.request_manager.drafters.own_text import OwnText
from actors.request_manager.ports import Clock, Draft, DraftTask, StepDraws

MAX_STEP_S = 0.003
"""Of the processor's time, for all requests in one step."""
MAX_MATCH = 16
"""Longer matches are not told apart."""
LEAD_TOKENS = 4
"""Of the prompt, kept with an answer."""
PIECE_TOKENS = 512
"""Longer answers are kept in pieces, each for itself; about as much is added in one step, in half a
millisecond."""
MAX_WAITING = 128
"""Pieces that are still to be added; where more come, those that waited longest are dropped.
Beside `memory_bytes`, up to 2 MB."""


class SuffixDecoding:
    """A drafter that copies from the request's own text and from earlier answers.

    Args:
        memory_bytes: for earlier answers; 0 to do without them.
        clock: seconds of the processor's time.
    """

    name = SUFFIX
    is_away = False

    def __init__(self, memory_bytes: int, clock: Clock = time.thread_time) -> None:
        self._time = FairTime(MAX_STEP_S, clock)
        self._own: dict[int, OwnText] = {}
        self._answers = EarlierAnswers(memory_bytes) if memory_bytes else None
        self._pieces: deque[Sequence[int]] = deque(maxlen=MAX_WAITING)  # of answers

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        """Drafts for the tasks whose text has read like this before."""
        found = {task.request_id: self._draft(task) for task in self._time.turns(tasks)}
        return {request_id: draft for request_id, draft in found.items() if draft is not None}

    def observe(self, steps: Sequence[StepDraws]) -> None:
        """Keep the answers that have come to their end."""
        if self._answers is None:
            return
        for step in steps:
            if step.is_over:
                self._queue(step.token_ids[max(0, step.prompt_len - LEAD_TOKENS) :])
        num_added = 0
        while self._pieces and num_added < PIECE_TOKENS:
            piece = self._pieces.popleft()
            self._answers.add(piece)
            num_added += len(piece)

    def forget(self, request_id: int) -> None:
        self._own.pop(request_id, None)

    def _queue(self, answer: Sequence[int]) -> None:
        begins = range(0, len(answer), PIECE_TOKENS)
        self._pieces.extend(answer[begin : begin + PIECE_TOKENS] for begin in begins)

    def _draft(self, task: DraftTask) -> Draft | None:
        tokens = task.token_ids
        own = self._own.setdefault(task.request_id, OwnText())
        own.extend(tokens)
        matches = own.matches(tokens, MAX_MATCH, task.max_depth)
        if self._answers is not None:
            matches += self._answers.matches(tokens[-MAX_MATCH:], task.max_depth)
        limits = Limits(task.max_nodes, task.max_depth, task.least_probability)
        return best_first(Alike(matches), ways_on, limits)
