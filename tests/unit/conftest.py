"""What tests of several parts need."""

from __future__ import annotations

import threading

import pytest

from actors.grammar import Grammars


@pytest.fixture
def held(monkeypatch):
    """An event that compilations wait for, and the sources that were compiled."""
    release, compiled = threading.Event(), []
    compile_now = Grammars.compile

    def compile_late(self, source):
        release.wait()
        compiled.append(source)
        return compile_now(self, source)

    monkeypatch.setattr(Grammars, "compile", compile_late)
    yield release, compiled
    release.set()
