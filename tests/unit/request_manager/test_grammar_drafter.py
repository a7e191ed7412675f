"""Drafts from grammars: what they force is proposed, what they leave open is not."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
from concurrent.futures import wait

import pytest

from actors import grammar_compiler
from actors.grammar import (
    GrammarError,
    Grammars,
    Matcher,
    byte_grammars,
    grammar_of_choice,
    grammar_of_json,
    grammar_of_regex,
    grammar_of_schema,
)
from actors.request_manager.drafters.foreseen import LAYOUT_ODDS, MAX_LOOKS, foresee
from actors.request_manager.drafters.grammar import (
    MAX_CATCH_UP_TOKENS,
    MAX_SLOW_STEPS,
    MAX_STEP_S,
    SPLIT_ODDS,
    GrammarDrafter,
)
from actors.request_manager.drafters.json_style import BLANKS, Style, blanks_before, styles_of
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


def foreseen(grammar: str, output: str = "") -> dict[str, float]:
    """The texts behind an output, each with its odds."""
    matcher = byte_grammars().compile(grammar)
    text = output.encode()
    assert matcher.accept(text) == len(text)
    found = foresee(matcher, text)
    assert all(len(text) == len(odds) for text, odds in found)
    return {text.decode(): odds[-1] for text, odds in found}


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


# ---------------------------------------------------------------- the text


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('{"ans', ['werable":%s,"answer":"', 'werable": %s, "answer": "']),
        ('{"answerable":', ['%s,"answer":"', ' %s, "answer": "']),
        ('{"answerable": ', ['%s, "answer": "']),
        ("{\n", ['  "answerable": %s,\n  "answer": "']),
        ('{\n    "ans', ['werable": %s,\n    "answer": "']),
    ],
)
def test_ways_to_write_what_a_schema_says(output, expected):
    values = ("true", "false")
    assert set(foreseen(SCHEMA, output)) == {text % value for text in expected for value in values}


def test_before_anything_is_written_all_styles_are_likely():
    texts = foreseen(SCHEMA)
    for beginning in ('{"answerable":true', '{"answerable": true', '{\n  "answerable": true'):
        assert any(text.startswith(beginning) for text in texts)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('{"answerable":t', ['rue,"answer":"']),
        ('{"answerable": t', ['rue, "answer": "']),
        ('{\n "answerable": true', [',\n "answer": "']),
        ('{"answerable": true, "answer": "', []),
        ('{"answerable": true, "answer": "so it is, or', []),
        ('{"answerable": true, "answer": "so"', ["}"]),
        ('{\n  "answerable": true,\n  "answer": "so"', ["\n}"]),
        ('{\n  "answerable": true,\n  "answer": "so"\n', ["}"]),
        ('{"answerable":\n\t', ["false", "true"]),
        ('{"answerable": true, "answer": "so"}', []),
    ],
)
def test_what_a_schema_lets_one_foresee(output, expected):
    texts = sorted(foreseen(SCHEMA, output))
    assert len(texts) == len(expected)
    assert all(text.startswith(start) for text, start in zip(texts, expected, strict=True))


VALUE = {"list": [{"a": 1, "b": {}}, {"a": [], "c": [2, 3]}], "text": 'say ": \\n, {x'}
LAYOUTS = [
    (Style.COMPACT, {"separators": (",", ":")}),
    (Style.SPACED, {}),
    (Style.INDENTED, {"indent": 3}),
    (Style.INDENTED, {"indent": 1}),
]


@pytest.mark.parametrize(("style", "options"), LAYOUTS)
def test_blanks_are_foreseen_as_they_are_written(style, options):
    """Before every part outside of strings, once the first line or colon is written."""
    text = json.dumps(VALUE, **options)
    outside = re.sub(r'"(\\.|[^"\\])*"', lambda found: '"' + "x" * (len(found[0]) - 1), text)
    parts = [found.start() for found in re.finditer(r'["{}\[\],:0-9]', outside)]
    known = [place for place in parts if place > text.index("[")]
    assert len(known) > 25
    for place in known:
        before = text[:place].encode()
        bare = before.rstrip(BLANKS)
        assert styles_of(before) == (style,)
        assert blanks_before(ord(text[place]), bare, style) == before[len(bare) :]


def test_what_is_forced_is_certain_and_ways_share_the_odds():
    assert foreseen(grammar_of_choice(["red and green"], "c"), "re") == {"d and green": 1.0}
    assert foreseen(grammar_of_choice(["a red", "a green"], "c")) == {"a red": 0.5, "a green": 0.5}


def test_where_a_text_may_end_it_may_go_on_too():
    assert foreseen(grammar_of_choice(["cat", "category"], "c"), "cat") == {"egory": 0.5}
    assert foreseen(grammar_of_regex("(ab)*", "r"))["ab" * 4] == pytest.approx(0.0625)


@pytest.mark.parametrize("regex", ["[a-z]+", "[0-9]{4}", ".*"])
def test_many_ways_on_bring_nothing(regex):
    assert foreseen(grammar_of_regex(regex, "r")) == {}


@pytest.mark.parametrize("regex", ["a{900}", "(ab|cd|ef|gh){90}", "(a|b){90}"])
def test_the_work_is_bounded(monkeypatch, regex):
    looks = []
    allowed = Matcher.allowed
    monkeypatch.setattr(Matcher, "allowed", lambda self: looks.append(self) or allowed(self))
    assert foreseen(grammar_of_regex(regex, "r"))
    assert len(looks) <= MAX_LOOKS


# ---------------------------------------------------------------- the drafter


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
    monkeypatch.setattr(grammar_compiler.GrammarCompiler, "start_of", None)
    drafter = GrammarDrafter(VOCABULARY, encode)
    assert await drafter.draft([task("")]) == {}
    assert drafter._walks == {}


async def test_an_output_is_followed_as_it_grows():
    drafter = GrammarDrafter(VOCABULARY, encode)
    for output in ('{"', '{"answer', '{"answerable":', '{"answerable": true, "'):
        grown = await drafts_of(drafter, task(SCHEMA, output))
        new = await drafts_of(GrammarDrafter(VOCABULARY, encode), task(SCHEMA, output))
        assert grown == new is not None


async def test_a_long_output_that_was_resumed_is_followed_over_several_steps():
    drafter = GrammarDrafter(VOCABULARY, encode)
    long = '{"answerable": true, "answer": "' + "x" * (2 * MAX_CATCH_UP_TOKENS) + '"'
    asked = task(SCHEMA, long)
    assert await drafts_of(drafter, asked) is None
    found = [await drafter.draft([asked]) for _ in range(3)]
    assert [len(drafts) for drafts in found] == [0, 1, 1]


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


async def test_a_grammar_that_takes_long_is_followed_less_far_and_then_no_more():
    ticks = itertools.count()
    slow = GrammarDrafter(VOCABULARY, encode, lambda: next(ticks) * MAX_STEP_S / 4)
    short = await drafts_of(slow, task(SCHEMA, '{"'))
    whole = await drafts_of(GrammarDrafter(VOCABULARY, encode), task(SCHEMA, '{"'))
    assert 0 < len(short.tree) < len(whole.tree)
    found = [await slow.draft([task(SCHEMA, '{"')]) for _ in range(MAX_SLOW_STEPS)]
    assert found[-1] != {}
    assert await slow.draft([task(SCHEMA, '{"')]) == {}


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
