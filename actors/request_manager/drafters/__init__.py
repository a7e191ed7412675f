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
