"""Compiles grammars on a thread of its own: a large one holds up its own request and nobody else.

What was compiled is kept while it is in use, and then for other requests with the same grammar; of
those that nobody uses, the ones asked for longest ago go first. For callers on one thread.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from actors.grammar import Grammars, Matcher

_KEPT = 64
"""Grammars that are kept, more only if more are in use."""


class GrammarCompiler:
    """From a grammar's source to a matcher at its start, in the background.

    Args:
        make: makes what compiles; called once, on the thread.
    """

    def __init__(self, make: Callable[[], Grammars]) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compile")
        self._grammars = self._thread.submit(make)
        self._starts: OrderedDict[str, Future[Matcher]] = OrderedDict()
        self._users: Counter[str] = Counter()

    def acquire(self, source: str) -> Future[Matcher]:
        """A matcher at the start of a grammar, to be copied; or GrammarError.

        Whoever asks is a user of the grammar until it calls `release`.
        """
        if source not in self._starts:
            self._starts[source] = self._thread.submit(self._compile, source)
        self._starts.move_to_end(source)
        self._users[source] += 1
        self._forget_idle()
        return self._starts[source]

    def release(self, source: str) -> None:
        """A user is gone; a grammar that nobody waits for any more need not be compiled."""
        self._users[source] -= 1
        if self._users[source]:
            return
        del self._users[source]
        if self._starts[source].cancel():
            del self._starts[source]
        self._forget_idle()

    def _forget_idle(self) -> None:
        """Keep no more than `_KEPT`, but for those in use."""
        num_over = len(self._starts) - _KEPT
        if num_over > 0:
            idle = [source for source in self._starts if source not in self._users]
            for source in idle[:num_over]:
                del self._starts[source]

    def _compile(self, source: str) -> Matcher:
        return self._grammars.result().compile(source)
