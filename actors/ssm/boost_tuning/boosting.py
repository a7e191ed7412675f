"""Boost-tuning of a pool: each draft model learns most from what those before it get wrong.

After SpecInfer (Miao et al., ASPLOS 2024, section 3): a draft model is tuned on the LLM's answers,
what it already gets right is filtered out, the next one is tuned on the rest. A place counts as got
right when a model's first word there is the LLM's. It is left out whole, or with some weight
(`rest`) kept: models that never see the easy words go wrong on the way to the hard ones. Filtered
are single places, or answers by the share of their places that is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from actors.ssm.boost_tuning.coverage import Shares, first_hits
from actors.ssm.boost_tuning.records import Record
from actors.ssm.model import DraftModel

Hits = list[npt.NDArray[np.bool_]]
"""For each record [answer] whether the LLM's word was found at the place."""


class Boost(StrEnum):
    """What a pool's next model learns less of."""

    PLACES = "places"
    """Places that the pool gets right."""
    ANSWERS = "answers"
    """Answers, the more of their places the pool gets right."""
    NONE = "none"
    """Nothing: models that differ by their seeds alone."""


def joined(found: Hits, more: Hits) -> Hits:
    """Where either found the LLM's word."""
    return [one | other for one, other in zip(found, more, strict=True)]


def boosted(records: Sequence[Record], found: Hits, boost: Boost, rest: float) -> list[Record]:
    """The records, weighted for the next model.

    Args:
        found: by the models before it.
        rest: weight in [0, 1] of what they get right.
    """
    if boost is Boost.NONE:
        return list(records)
    weights = []
    for hits in found:
        left = 1.0 - (1.0 - rest) * hits.astype(np.float32)
        weights.append(left if boost is Boost.PLACES else np.full_like(left, left.mean()))
    return [replace(one, weights=own) for one, own in zip(records, weights, strict=True)]


def pool_coverage(models: Sequence[DraftModel], records: Sequence[Record]) -> Shares:
    """[models] share of places where the LLM's word is the first word of one of the first 1, 2, …
    models."""
    found = [np.zeros(record.answer_len, np.bool_) for record in records]
    shares = []
    for model in models:
        found = joined(found, first_hits(model, records))
        shares.append(float(np.concatenate(found).mean()) if found else 0.0)
    return np.array(shares)
