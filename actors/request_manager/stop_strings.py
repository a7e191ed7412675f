"""Stop strings, found in the bytes of an output as they come.

The match that *ends* first wins; of those that end together, the longest. Bytes decide, so the
answer does not depend on how they are grouped into tokens or steps.

An Aho-Corasick automaton (Aho & Corasick, CACM 1975): after any text, its state stands for the
longest suffix of the text that is a prefix of a stop string. That suffix is also what must be held
back from the reader. States are plain integers; the matcher itself never changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopMatcher:
    """The automaton of one request's stop strings.

    Args:
        stop_strings: not empty ones, in UTF-8.
    """

    START = 0
    """The state before any text."""

    def __init__(self, stop_strings: Iterable[bytes] = ()) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._fallback: list[int] = [0]
        self._match: list[int] = [0]  # length of the longest stop string that ends here
        self._held: list[int] = [0]
        for text in stop_strings:
            self._add(text)
        self._link()

    def find(self, state: int, data: bytes) -> tuple[int, int | None]:
        """Read on until a stop string is complete.

        Returns:
            The state after `data`, or at the end of the match; and, if there is a match, where it
            starts, counted from the start of `data`: negative if in earlier text.
        """
        for end, byte in enumerate(data, start=1):
            state = self._step(state, byte)
            if self._match[state]:
                return state, end - self._match[state]
        return state, None

    def skip(self, state: int, data: bytes) -> int:
        """The state after `data`, in which stop strings do not count."""
        for byte in data:
            state = self._step(state, byte)
        return state

    def held_bytes(self, state: int) -> int:
        """Length of the text's longest suffix that could still grow into a stop string."""
        return self._held[state]

    def matched_bytes(self, state: int) -> int:
        """Length of the stop string that is complete in a state; 0 if none is."""
        return self._match[state]

    def _step(self, state: int, byte: int) -> int:
        while byte not in self._next[state]:
            if state == self.START:
                return state
            state = self._fallback[state]
        return self._next[state][byte]

    def _add(self, text: bytes) -> None:
        state = self.START
        for depth, byte in enumerate(text, start=1):
            if byte not in self._next[state]:
                self._next[state][byte] = len(self._next)
                self._next.append({})
                self._fallback.append(self.START)
                self._match.append(0)
                self._held.append(depth)
            state = self._next[state][byte]
        self._match[state] = len(text)

    def _link(self) -> None:
        """Point each state, shallow ones first, to its longest proper suffix that is a state."""
        queue = deque(self._next[self.START].values())
        while queue:
            state = queue.popleft()
            fallback = self._fallback[state]
            self._match[state] = self._match[state] or self._match[fallback]
            if not self._next[state]:
                self._held[state] = self._held[fallback]
            for byte, child in self._next[state].items():
                self._fallback[child] = self._step(fallback, byte)
                queue.append(child)
