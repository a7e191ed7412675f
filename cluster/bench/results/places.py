"""Coverage place by place: is the LLM's token among the first guesses of draft models?

Every place of an answer counts, not only those where a step happened to begin. The guesses are made
as in serving: at a temperature above 0 by the noise that the LLM draws under.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from actors.errors import PeerError
from actors.request_manager.generation import GenerationRequest
from actors.request_manager.ports import Drafter, DraftTask

WIDEST = 5
MAX_CALLS_TO_BEGIN = 100

Guesses = Sequence[int]
"""Token ids, the likeliest first."""


class Place(NamedTuple):
    """One place of an answer.

    Attributes:
        guesses: of each draft model.
        token: what the LLM said there.
    """

    guesses: Sequence[Guesses]
    token: int


async def places_of(
    models: Sequence[Drafter], number: int, asked: GenerationRequest, answer: Sequence[int]
) -> list[Place]:
    """All places of one answer.

    Args:
        models: whose trees have up to `WIDEST` nodes and one level.
        number: of the request; each has another.
    """
    by_model = [await _guesses(model, number, asked, answer) for model in models]
    return [Place(guesses, token) for *guesses, token in zip(*by_model, answer, strict=True)]


async def _guesses(
    model: Drafter, number: int, asked: GenerationRequest, answer: Sequence[int]
) -> list[Guesses]:
    tokens = (*asked.prompt_ids, *answer)
    found = []
    for end in range(len(asked.prompt_ids), len(tokens)):
        task = DraftTask(number, tokens[:end], len(asked.prompt_ids), asked.sampling, WIDEST, 1)
        found.append(await _children(model, task))
    model.forget(number)
    return found


async def _children(model: Drafter, task: DraftTask) -> Guesses:
    """What it guesses; a long text is read in several calls before it guesses anything."""
    for _ in range(MAX_CALLS_TO_BEGIN):
        drafts = await model.draft([task])
        if task.request_id in drafts:
            return drafts[task.request_id].tree.token_ids
    raise PeerError(f"{model.name} gives no tree")


def in_turns(guesses: Sequence[Guesses], count: int) -> list[int]:
    """The first `count` different guesses, draft models taking turns."""
    ranks = range(max(map(len, guesses), default=0))
    turns = (one[rank] for rank in ranks for one in guesses if rank < len(one))
    return list(dict.fromkeys(turns))[:count]


def coverage(places: Sequence[Place], models: Sequence[int]) -> list[float]:
    """Shares of places whose token is among 1, 2, … `WIDEST` guesses.

    Args:
        models: who guesses, by their place; several share the guesses.
    """
    hits = [0] * WIDEST
    for place in places:
        guesses = in_turns([place.guesses[model] for model in models], WIDEST)
        if place.token in guesses:
            for rank in range(guesses.index(place.token), WIDEST):
                hits[rank] += 1
    return [hit / max(len(places), 1) for hit in hits]
