"""Who uses a grammar decides whether it is compiled and kept."""

from __future__ import annotations

import pytest

from actors import grammar_compiler
from actors.grammar import GrammarError, byte_grammars, grammar_of_choice
from actors.grammar_compiler import GrammarCompiler

SOURCES = [grammar_of_choice([text], "choice") for text in ("red", "green", "blue")]


def test_a_grammar_is_compiled_while_one_user_is_left(held):
    release, compiled = held
    compiler = GrammarCompiler(byte_grammars)
    for source in (*SOURCES, SOURCES[1]):
        compiler.acquire(source)
    compiler.release(SOURCES[1])
    compiler.release(SOURCES[2])
    last = compiler.acquire(SOURCES[1])
    release.set()
    assert last.result().accept(b"green") == 5
    assert compiled == SOURCES[:2]
    assert compiler.acquire(SOURCES[2]).result().accept(b"blue") == 4


def test_grammars_in_use_are_kept_and_of_the_others_the_last_asked_for(monkeypatch):
    monkeypatch.setattr(grammar_compiler, "_KEPT", 2)
    compiler = GrammarCompiler(byte_grammars)
    starts = [compiler.acquire(source) for source in SOURCES]
    assert [compiler.acquire(source) for source in SOURCES] == starts
    for start, source in zip(starts, SOURCES, strict=True):
        start.result()
        compiler.release(source)
        compiler.release(source)
    assert [compiler.acquire(source) for source in SOURCES[1:]] == starts[1:]
    assert compiler.acquire(SOURCES[0]) is not starts[0]


def test_what_the_library_raises_is_an_error_of_the_grammar(monkeypatch):
    def raising(*args, **options):
        raise ValueError("wrong")

    monkeypatch.setattr("actors.grammar.LLMatcher", raising)
    with pytest.raises(GrammarError, match="wrong"):
        GrammarCompiler(byte_grammars).acquire(SOURCES[0]).result()
