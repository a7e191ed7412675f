"""Tasks with grammars for the drafter of grammars, over a small vocabulary."""

from __future__ import annotations

import asyncio
from concurrent.futures import wait

from actors.grammar import grammar_of_schema
from actors.request_manager.drafters.grammar import GrammarDrafter, _Walk
from actors.request_manager.ports import Draft, DraftTask
from actors.sampling import SamplingParams
from actors.vocabulary import Vocabulary

WORDS = ("answer", "able", '":', ' "', " true", " false", '{"', '", "', "red", "green", "é")
TEXTS = (*(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS), b"")
VOCABULARY = Vocabulary(TEXTS, tuple(map(repr, TEXTS)), frozenset({len(TEXTS) - 1}))
SCHEMA = grammar_of_schema(
    {
        "type": "object",
        "properties": {"answerable": {"type": "boolean"}, "answer": {"type": "string"}},
        "required": ["answerable", "answer"],
        "additionalProperties": False,
    },
    "schema",
)
PROMPT = [1, 2, 3]


def encode(text: str) -> list[int]:
    """Longest tokens first."""
    data, found = text.encode(), list[int]()
    while data:
        token = max(
            (token for token, known in enumerate(TEXTS) if known and data.startswith(known)),
            key=lambda token: len(TEXTS[token]),
        )
        found.append(token)
        data = data[len(TEXTS[token]) :]
    return found


def task(grammar: str, output: str = "", request_id: int = 0, max_depth: int = 12) -> DraftTask:
    tokens = [*PROMPT, *encode(output)]
    return DraftTask(
        request_id, tokens, len(PROMPT), SamplingParams(), 32, max_depth, grammar=grammar
    )


async def drafts_of(drafter: GrammarDrafter, asked: DraftTask) -> Draft | None:
    """What is drafted once the grammar is compiled."""
    await drafter.draft([asked])
    if asked.grammar:
        await asyncio.to_thread(wait, [drafter._walks[asked.request_id].start], 20.0)
    return (await drafter.draft([asked])).get(asked.request_id)


async def compiled(drafter, asked):
    """Once the grammars of some tasks are compiled."""
    for one in asked:
        drafter._walks.setdefault(
            one.request_id,
            _Walk(one.grammar, drafter._compiler.acquire(one.grammar), VOCABULARY),
        )
    starts = [walk.start for walk in drafter._walks.values()]
    await asyncio.to_thread(wait, starts, 20.0)
