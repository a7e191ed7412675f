"""What drafters are called, one by one and by their kind.

Draft models share the kind `ssm`: one alone has that name, several are `ssm-0`, `ssm-1`, ….
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

SSM = "ssm"
"""The drafters that need draft models, the configuration's `ssms`."""
SUFFIX, NGRAM = "suffix", "ngram"
LEARNERS = frozenset({SUFFIX, NGRAM})
"""Drafters that learn from some requests for others."""


def ssm_names(num_models: int) -> tuple[str, ...]:
    """What each of the draft models is called."""
    if num_models == 1:
        return (SSM,)
    return tuple(f"{SSM}-{index}" for index in range(num_models))


def kind_of(drafter: str) -> str:
    """What a drafter is: `ssm` for the one that is named `ssm-1`."""
    return drafter.partition("-")[0]


def askable(drafters: Iterable[str]) -> tuple[str, ...]:
    """What a request may call these drafters by: all of a kind, or each by its own name."""
    names = tuple(drafters)
    return tuple(dict.fromkeys((*map(kind_of, names), *names)))


def drop_all_of(drafter: str, learnt: MutableMapping[Any, Any]) -> None:
    """Delete what was learnt of a drafter, where keys are tuples that its name begins."""
    for key in [key for key in learnt if key[0] == drafter]:
        del learnt[key]
