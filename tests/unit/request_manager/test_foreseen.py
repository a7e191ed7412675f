"""What text a grammar lets one foresee, and how it is laid out."""

from __future__ import annotations

import json
import re

import pytest

from actors.grammar import Matcher, byte_grammars, grammar_of_choice, grammar_of_regex
from actors.request_manager.drafters.foreseen import MAX_LOOKS, foresee
from actors.request_manager.drafters.json_style import BLANKS, Style, blanks_before, styles_of
from tests.unit.request_manager.grammar_tasks import SCHEMA


def foreseen(grammar: str, output: str = "") -> dict[str, float]:
    """The texts behind an output, each with its odds."""
    matcher = byte_grammars().compile(grammar)
    text = output.encode()
    assert matcher.accept(text) == len(text)
    found = foresee(matcher, text)
    assert all(len(text) == len(odds) for text, odds in found)
    return {text.decode(): odds[-1] for text, odds in found}


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
    matcher = byte_grammars().compile(grammar_of_regex(regex, "r"))
    allowed = Matcher.allowed
    monkeypatch.setattr(Matcher, "allowed", lambda self: looks.append(self) or allowed(self))
    assert foresee(matcher, b"")
    assert len(looks) <= MAX_LOOKS
