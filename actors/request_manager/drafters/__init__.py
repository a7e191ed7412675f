"""Drafters by the names that a configuration uses; all but one need no model of their own."""

from __future__ import annotations

from collections.abc import Callable

from actors.request_manager.drafters.grammar import GrammarDrafter
from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.ports import Drafter, Encode
from actors.vocabulary import Vocabulary

DRAFTERS: dict[str, Callable[[Vocabulary, Encode], Drafter]] = {
    GrammarDrafter.name: GrammarDrafter,
    PromptLookup.name: lambda vocabulary, encode: PromptLookup(),
}

GRAMMAR = GrammarDrafter.name
"""The drafter that has nothing to say but of requests with a grammar."""

SSM = "ssm"
"""The drafters that need draft models, the configuration's `ssms`."""


def ssm_names(num_models: int) -> tuple[str, ...]:
    """What each of the draft models is called: alone by the name of its kind, else numbered."""
    if num_models == 1:
        return (SSM,)
    return tuple(f"{SSM}-{index}" for index in range(num_models))
