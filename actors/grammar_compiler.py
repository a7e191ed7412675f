"""Compiles grammars on a thread of its own: a large one holds up its own request and nobody else.

What was compiled is kept for other requests with the same grammar, the least used go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from actors.grammar import Grammars, Matcher

_KEPT = 64
"""Grammars that are kept for other requests."""


class GrammarCompiler:
    """From a grammar's source to a matcher at its start, in the background.

    Args:
        make: makes what compiles; called once, on the thread.
    """

    def __init__(self, make: Callable[[], Grammars]) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compile")
        self._grammars = self._thread.submit(make)
        self._starts: OrderedDict[str, Future[Matcher]] = OrderedDict()

    def start_of(self, source: str) -> Future[Matcher]:
        """A matcher at the start of a grammar, to be copied; or GrammarError."""
        if source not in self._starts:
            self._starts[source] = self._thread.submit(self._compile, source)
            if len(self._starts) > _KEPT:
                self._starts.popitem(last=False)
        self._starts.move_to_end(source)
        return self._starts[source]

    def give_up(self, start: Future[Matcher]) -> None:
        """Nobody waits for a grammar any more: it need not be compiled."""
        if start.cancel():
            self._starts = OrderedDict(
                (source, other) for source, other in self._starts.items() if other is not start
            )

    def _compile(self, source: str) -> Matcher:
        return self._grammars.result().compile(source)
