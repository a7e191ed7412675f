"""Drafts from grammars: what they force is proposed, what they leave open is not."""

from __future__ import annotations

import threading

import pytest
from llguidance import LLMatcher

from actors import grammar_compiler
from actors.grammar import GrammarError, Grammars, grammar_of_choice, grammar_of_json
from actors.request_manager.drafters.foreseen import LAYOUT_ODDS
from actors.request_manager.drafters.grammar import SPLIT_ODDS, GrammarDrafter
from actors.request_manager.ports import DraftTask
from actors.sampling import SamplingParams
from tests.unit.request_manager.grammar_tasks import (
    PROMPT,
    SCHEMA,
    TEXTS,
    VOCABULARY,
    compiled,
    drafts_of,
    encode,
    task,
)


async def paths(grammar: str, output: str = "", max_depth: int = 12) -> list[list[str]]:
    """The leaves of a draft as the texts of their tokens."""
    draft = await drafts_of(
        GrammarDrafter(VOCABULARY, encode), task(grammar, output, max_depth=max_depth)
    )
    if draft is None:
        return []
    return [
        [TEXTS[token].decode() for token in draft.tree.path_tokens(leaf)]
        for leaf in draft.tree.leaves()
    ]


async def test_a_forced_text_is_split_as_the_tokenizer_splits_it():
    choices = grammar_of_choice(['answerable": true', 'answerable": false'], "c")
    assert sorted(await paths(choices)) == [
        ["answer", "able", '":', " false"],
        ["answer", "able", '":', " true"],
    ]
    assert sorted(await paths(choices, "answ")) == [
        ["e", "r", "able", '":', " false"],
        ["e", "r", "able", '":', " true"],
    ]


async def test_a_score_is_given_the_parent():
    choices = grammar_of_choice(['answerable": true', 'answerable": false'], "c")
    draft = await drafts_of(GrammarDrafter(VOCABULARY, encode), task(choices))
    odds = [1.0, 1.0, 1.0, 0.5, 0.5]
    assert draft.tree.parents == (-1, 0, 1, 2, 2)
    assert draft.scores == pytest.approx([SPLIT_ODDS * share for share in odds])


async def test_guesses_of_layout_are_less_than_certain():
    draft = await drafts_of(GrammarDrafter(VOCABULARY, encode), task(SCHEMA, '{"answerable": t'))
    assert max(draft.scores[:3]) == pytest.approx(SPLIT_ODDS)
    assert min(draft.scores) == pytest.approx(SPLIT_ODDS * LAYOUT_ODDS**2)


async def test_no_path_is_deeper_than_asked_for():
    assert {len(path) for path in await paths(SCHEMA, max_depth=3)} == {3}


async def test_nothing_in_the_middle_of_a_string_or_of_a_character():
    assert await paths(SCHEMA, '{"answerable": true, "answer": "wh') == []
    half = [*PROMPT, *"é".encode()[:1]]
    asked = DraftTask(0, half, 3, SamplingParams(), 32, 9, grammar=grammar_of_choice(["éa"], "c"))
    assert await drafts_of(GrammarDrafter(VOCABULARY, encode), asked) is None


async def test_a_request_without_a_grammar_costs_nothing(monkeypatch):
    monkeypatch.setattr(grammar_compiler.GrammarCompiler, "acquire", None)
    drafter = GrammarDrafter(VOCABULARY, encode)
    assert await drafter.draft([task("")]) == {}
    assert drafter._walks == {}


async def test_an_output_is_followed_as_it_grows():
    drafter = GrammarDrafter(VOCABULARY, encode)
    for output in ('{"', '{"answer', '{"answerable":', '{"answerable": true, "'):
        grown = await drafts_of(drafter, task(SCHEMA, output))
        new = await drafts_of(GrammarDrafter(VOCABULARY, encode), task(SCHEMA, output))
        assert grown == new is not None


async def test_what_the_library_raises_costs_no_other_task(monkeypatch):
    bad, good = task(grammar_of_json("j"), "{"), task(SCHEMA, "{", request_id=1)
    make = LLMatcher

    def raising(tokenizer, source, **options):
        if source == bad.grammar:
            raise ValueError("wrong")
        return make(tokenizer, source, **options)

    monkeypatch.setattr("actors.grammar.LLMatcher", raising)
    drafter = GrammarDrafter(VOCABULARY, encode)
    await compiled(drafter, [bad, good])
    for _ in range(2):
        assert list(await drafter.draft([bad, good])) == [1]


@pytest.mark.parametrize("grammar", ["no grammar at all", "start: /(/"])
async def test_a_grammar_that_cannot_be_compiled_brings_nothing(grammar):
    assert await paths(grammar) == []


async def test_an_output_that_left_its_grammar_brings_nothing():
    drafter = GrammarDrafter(VOCABULARY, encode)
    lost, good = task(SCHEMA, "nonsense"), task(SCHEMA, "{", request_id=1)
    for _ in range(2):
        assert await drafts_of(drafter, lost) is None
        assert await drafts_of(drafter, good) is not None


async def test_too_much_work_brings_nothing(monkeypatch):
    def refuse(self):
        raise GrammarError("too much")

    monkeypatch.setattr("actors.grammar.Matcher.allowed", refuse)
    assert await paths(SCHEMA) == []


async def test_nobody_waits_for_a_compilation(monkeypatch):
    release = threading.Event()
    compile_now = Grammars.compile
    monkeypatch.setattr(
        Grammars, "compile", lambda self, source: release.wait() and compile_now(self, source)
    )
    drafter = GrammarDrafter(VOCABULARY, encode)
    assert await drafter.draft([task(SCHEMA)]) == {}
    release.set()
    assert await drafts_of(drafter, task(SCHEMA)) is not None


async def test_a_finished_request_is_forgotten():
    drafter = GrammarDrafter(VOCABULARY, encode)
    both = [task(grammar_of_json("j"), request_id=number) for number in (0, 1)]
    await drafter.draft(both)
    drafter.forget(0)
    drafter.forget(0)
    assert list(drafter._walks) == [1]
    assert await drafts_of(drafter, both[1]) is not None
    drafter.forget(1)
    assert drafter._walks == {}
