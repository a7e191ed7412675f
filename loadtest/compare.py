"""Two arms of one plan against each other: are the answers the same, and which is faster?

Requests are paired by their number in the plan. Answers are compared token by token where both
arms send token ids, else character by character. Speed is the ratio of geometric means over the
pairs that both arms answered, with a bootstrap interval over pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from loadtest.records import Outcome, RequestRecord
from loadtest.summary import Measured, Summary

RATIOS = ("ttft_s", "ttft_from_schedule_s", "tpot_s", "e2e_s")
RESAMPLES = 2000


@dataclass(frozen=True)
class Difference:
    """Where two answers part: the request's number, and the place of the first other token."""

    index: int
    place: int


@dataclass(frozen=True)
class Ratio:
    """Second arm by first arm, below 1 where the second is faster; and its 95 % interval."""

    value: float
    low: float
    high: float
    num_pairs: int


@dataclass(frozen=True)
class Comparison:
    """What two arms have to do with each other.

    Attributes:
        unit: what was compared: `token` or `character`.
        num_equal, differences: of the pairs in which both answers were whole.
        num_unpaired: requests that at least one arm did not answer.
    """

    first: str
    second: str
    label: str
    unit: str
    num_pairs: int
    num_equal: int
    num_unpaired: int
    differences: tuple[Difference, ...]
    ratios: dict[str, Ratio]

    @property
    def all_equal(self) -> bool:
        return self.num_pairs > 0 and self.num_equal == self.num_pairs

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(first: Summary, second: Summary, rng: np.random.Generator) -> Comparison:
    """Pair the requests of two summaries."""
    ours = {one.record.index: one for one in first.measured}
    theirs = {one.record.index: one for one in second.measured}
    every = sorted(ours.keys() | theirs.keys())
    pairs = [
        (ours[index], theirs[index])
        for index in every
        if index in ours and index in theirs and _whole(ours[index]) and _whole(theirs[index])
    ]
    by_token = all(a.record.token_ids and b.record.token_ids for a, b in pairs)
    differences = []
    for a, b in pairs:
        place = first_difference(_content(a.record, by_token), _content(b.record, by_token))
        if place is not None:
            differences.append(Difference(a.record.index, place))
    return Comparison(
        first.arm,
        second.arm,
        first.label,
        "token" if by_token else "character",
        len(pairs),
        len(pairs) - len(differences),
        len(every) - len(pairs),
        tuple(differences),
        {name: ratio for name in RATIOS if (ratio := _ratio(pairs, name, rng)) is not None},
    )


def first_difference(first: Sequence[object], second: Sequence[object]) -> int | None:
    """The first place where two sequences are not the same; None if they are equal."""
    for place, (a, b) in enumerate(zip_longest(first, second)):
        if a != b:
            return place
    return None


def _whole(one: Measured) -> bool:
    return one.record.outcome is Outcome.OK


def _content(record: RequestRecord, by_token: bool) -> Sequence[object]:
    return record.token_ids if by_token else record.text


def _ratio(
    pairs: Sequence[tuple[Measured, Measured]], name: str, rng: np.random.Generator
) -> Ratio | None:
    values = [
        (a, b)
        for one, other in pairs
        if (a := getattr(one.timing, name, None)) and (b := getattr(other.timing, name, None))
    ]
    if not values:
        return None
    logs = np.log([b / a for a, b in values])
    drawn = logs[rng.integers(len(logs), size=(RESAMPLES, len(logs)))].mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return Ratio(float(np.exp(logs.mean())), float(low), float(high), len(values))
