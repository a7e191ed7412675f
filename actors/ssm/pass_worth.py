"""Whether one more forward pass over the draft trees is worth the time that it keeps the LLM
waiting.

The nodes to expand are accepted with their path scores, so their sum, times the share of it that
goes on to a child that is kept, is what the pass should add to the step's tokens. The time it takes
would bring tokens too: whoever asks says how many a second. Share and time are learnt from passes.

Trees are only guesses, so what the clock decides here never shows in a text.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

FORGET = 1 / 32
FIRST_SHARE = 0.6
HICCUP = 3.0
"""A pass that takes so many times longer than it should says something of the machine's other work
only."""
PATIENCE = 32
"""How often passes of a size are not run before one is, to see whether that is still right."""


@dataclass
class _Size:
    seconds: float = 0.0
    left_out: int = 0


class PassWorth:
    """What passes bring and what they cost, by the number of their rows up to a power of two."""

    def __init__(self) -> None:
        self._share = FIRST_SHARE
        self._sizes: defaultdict[int, _Size] = defaultdict(_Size)

    def decide(self, promise: float, num_rows: int, tokens_per_s: float) -> bool:
        """Whether a pass should be run; always where its time is unknown or worth nothing.

        Args:
            promise: the sum of the path scores of the nodes to expand.
            tokens_per_s: what a second is worth.
        """
        size = self._sizes[num_rows.bit_length()]
        price = tokens_per_s * size.seconds
        if not price or promise * self._share > price or size.left_out >= PATIENCE:
            size.left_out = 0
            return True
        size.left_out += 1
        return False

    def observe(self, promise: float, gain: float, num_rows: int, seconds: float) -> None:
        """A pass was run.

        Args:
            gain: the sum of the path scores of the children that were kept.
        """
        if promise:
            self._share += FORGET * (gain / promise - self._share)
        size = self._sizes[num_rows.bit_length()]
        known = size.seconds or seconds
        size.seconds = known + FORGET * (min(seconds, HICCUP * known) - known)
