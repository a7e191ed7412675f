"""How the next token is chosen: the parameters of a request, and their validation.

The order of the logit steps, per node and from that node's own path, is fixed:
bias, penalties, `min_tokens`, grammar → temperature → top-k → top-p → min-p.
The LLM and every draft model apply the same steps.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields

from actors.errors import InputError

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature decoding is greedy: perturbations no longer change any order that
float32 logits can hold apart, and their division by the temperature would overflow."""

MAX_TEMPERATURE = 100.0
SEED_SPACE = 1 << 64


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one request.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose mass reaches this, in (0, 1].
        min_p: keep tokens at least this fraction as probable as the best one, in [0, 1].
        min_tokens: EOS and stop tokens cannot be drawn before this many output tokens.
        seed: 64-bit key of the shared noise.

    Raises:
        InputError: naming the first field that is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    min_tokens: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not math.isfinite(getattr(self, field.name)):
                raise InputError(f"{field.name} must be a finite number", field.name)
        _require(
            0.0 <= self.temperature <= MAX_TEMPERATURE,
            "temperature",
            f"must be between 0 and {MAX_TEMPERATURE:g}",
        )
        _require(0 <= self.top_k < 1 << 31, "top_k", "must be between 0 (all) and 2147483647")
        _require(0.0 < self.top_p <= 1.0, "top_p", "must be above 0 and at most 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", "must be between 0 and 1")
        _require(0 <= self.min_tokens < 1 << 31, "min_tokens", "must not be negative")
        _require(0 <= self.seed < SEED_SPACE, "seed", "must be in [0, 2^64)")

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def truncates(self) -> bool:
        """True if some token may be cut off before the draw."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


def derived_seed(seed: int, choice: int) -> int:
    """The seed of choice `choice` of a request for several; choice 0 keeps the request's own."""
    if choice == 0:
        return seed % SEED_SPACE
    digest = hashlib.blake2b(f"{seed % SEED_SPACE}:{choice}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def _require(holds: bool, param: str, message: str) -> None:
    if not holds:
        raise InputError(f"{param} {message}", param)
