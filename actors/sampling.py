"""How the next token is chosen: the parameters of a request, and their validation.

The order of the logit steps, per node and from that node's own path, is fixed:
bias, penalties, `min_tokens`, grammar → temperature → top-k → top-p → min-p.
The LLM and every draft model apply the same steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from actors.errors import InputError

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature decoding is greedy: perturbations no longer change any order that
float32 logits can hold apart, and their division by the temperature would overflow."""

MAX_COUNT = (1 << 31) - 1
MAX_BIASED_TOKENS = 1024
SEED_SPACE = 1 << 64


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, both among them unless `is_open`: then `least` is not."""

    least: float
    most: float
    is_open: bool = False

    def holds(self, value: float) -> bool:
        return value <= self.most and (value > self.least if self.is_open else value >= self.least)

    def __str__(self) -> str:
        if self.is_open:
            return f"above {self.least} and at most {self.most}"
        return f"between {self.least} and {self.most}"


BIAS = Range(-100, 100)
RANGES: Mapping[str, Range] = {
    "temperature": Range(0, 100),
    "top_k": Range(0, MAX_COUNT),
    "top_p": Range(0, 1, is_open=True),
    "min_p": Range(0, 1),
    "min_tokens": Range(0, MAX_COUNT),
    "seed": Range(0, SEED_SPACE - 1),
    "repetition_penalty": Range(0, 100, is_open=True),
    "frequency_penalty": Range(-2, 2),
    "presence_penalty": Range(-2, 2),
}
"""Of every number among the parameters. HTTP takes more of two, and maps them: `top_k` -1 is 0, a
negative `seed` another one."""


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one request.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose mass reaches this.
        min_p: keep tokens at least this fraction as probable as the best one.
        min_tokens: EOS and stop tokens cannot be drawn before this many output tokens.
        seed: 64-bit key of the shared noise.
        repetition_penalty: above 1 makes tokens of prompt and output less likely: their logits are
            divided by it where positive, multiplied where negative (Keskar et al. 2019, "CTRL").
        frequency_penalty: taken off a token's logit for each time that it stands in the output.
        presence_penalty: taken off once if it stands in the output at all.
        logit_bias: (token id, what to add to its logit), each token once.

    Raises:
        InputError: naming the first field that is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    min_tokens: int = 0
    seed: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            if not allowed.holds(getattr(self, name)):
                raise InputError(f"{name} must be {allowed}", name)
        self._check_bias()

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def penalizes(self) -> bool:
        """True if a draw depends on which tokens came before."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)

    @cached_property
    def bias_arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The biased tokens, and what is added to their logits."""
        ids, values = zip(*self.logit_bias, strict=True) if self.logit_bias else ((), ())
        return np.asarray(ids, dtype=np.int64), np.asarray(values, dtype=np.float32)

    @property
    def truncates(self) -> bool:
        """True if some token may be cut off before the draw."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def _check_bias(self) -> None:
        _require(
            len(self.logit_bias) <= MAX_BIASED_TOKENS,
            "logit_bias",
            f"may name at most {MAX_BIASED_TOKENS} tokens",
        )
        ids = {token for token, _ in self.logit_bias}
        _require(all(token >= 0 for token in ids), "logit_bias", "must name tokens by their ids")
        _require(len(ids) == len(self.logit_bias), "logit_bias", "names a token twice")
        within = all(BIAS.holds(bias) for _, bias in self.logit_bias)
        _require(within, "logit_bias", f"must be {BIAS}")


def derived_seed(seed: int, choice: int) -> int:
    """The seed of choice `choice` of a request for several; choice 0 keeps the request's own."""
    if choice == 0:
        return seed % SEED_SPACE
    digest = hashlib.blake2b(f"{seed % SEED_SPACE}:{choice}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def _require(holds: bool, param: str, message: str) -> None:
    if not holds:
        raise InputError(f"{param} {message}", param)
