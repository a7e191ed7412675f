"""Whether one more forward pass over the draft trees is worth the time that it keeps the LLM
waiting.

The nodes to expand are accepted with their path scores, so their sum, times the share of it that
goes on to a child that is kept, is what the pass should add to the step's tokens. The time it takes
would bring tokens too: whoever asks says how many a second. Share and time are learnt from passes.

Trees are only guesses, so what the clock decides here never shows in a text.
"""

from __future__ import annotations

from collections import defaultdict

FORGET = 1 / 32
FIRST_SHARE = 0.6


class PassWorth:
    """What passes bring and what they cost, by the number of their rows up to a power of two."""

    def __init__(self) -> None:
        self._share = FIRST_SHARE
        self._seconds: defaultdict[int, float] = defaultdict(float)

    def pays(self, promise: float, num_rows: int, tokens_per_s: float) -> bool:
        """True if a pass should be run; always where its time is unknown or worth nothing.

        Args:
            promise: the sum of the path scores of the nodes to expand.
            tokens_per_s: what a second is worth.
        """
        return promise * self._share > tokens_per_s * self._seconds[num_rows.bit_length()]

    def observe(self, promise: float, gain: float, num_rows: int, seconds: float) -> None:
        """A pass was run.

        Args:
            gain: the sum of the path scores of the children that were kept.
        """
        self._share += FORGET * (gain / promise - self._share)
        size = num_rows.bit_length()
        known = self._seconds[size]
        self._seconds[size] = known + FORGET * (seconds - known) if known else seconds
