"""A request's own text, and where it has read as it does at its end.

The text is searched anew each time, whole and at once: of a few thousand tokens that takes
microseconds, there is no index to build when a long prompt comes, and every place counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.request_manager.drafters.matches import ENOUGH_PLACES, Match, continuation, match_length

MAX_PLACES = 24
"""Most recent places that are compared."""
VECTOR_TOKENS = 4
"""Matches as long are told apart before the most recent are chosen."""


class OwnText:
    """Prompt and output of one request so far."""

    def __init__(self) -> None:
        self._tokens = np.empty(0, np.int32)
        self._num_tokens = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """It has grown to these tokens."""
        if len(tokens) > len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * len(tokens))
        self._tokens[self._num_tokens : len(tokens)] = tokens[self._num_tokens :]
        self._num_tokens = len(tokens)

    def matches(self, tokens: Sequence[int], max_match: int, max_depth: int) -> list[Match]:
        """Where it has read as at its end, the longest and most recent first.

        A continuation that runs into the end goes on by copying itself, so that text that repeats
        itself is continued to full depth.

        Args:
            tokens: what it was extended to last.
            max_match: longer matches are not told apart.
            max_depth: of continuations.
        """
        return [
            Match(
                match_length(tokens, tokens, end, min(max_match, end + 1)),
                continuation(tokens, end, max_depth),
            )
            for end in self._ends()
        ]

    def _ends(self) -> list[int]:
        known = self._tokens[: self._num_tokens]
        ends = np.flatnonzero(known[:-1] == known[-1])
        by_length = [ends]
        for back in range(1, VECTOR_TOKENS):
            ends = ends[ends >= back]
            if ends.size:
                ends = ends[known[ends - back] == known[-1 - back]]
                by_length.append(ends)
        found: dict[int, None] = {}
        for ends in reversed(by_length):
            found |= dict.fromkeys(ends[: -MAX_PLACES - 1 : -1].tolist())
            if len(found) >= ENOUGH_PLACES:
                break
        return list(found)
