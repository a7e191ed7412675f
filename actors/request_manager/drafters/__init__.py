"""Drafters by the names that a configuration uses; all but one need no model of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from actors.request_manager.drafters.grammar import GrammarDrafter
from actors.request_manager.drafters.ngram import NgramTables
from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.drafters.suffix import SuffixDecoding
from actors.request_manager.ports import Drafter, Encode
from actors.vocabulary import Vocabulary

if TYPE_CHECKING:
    from actors.request_manager.config import SpeculationConfig

DRAFTERS: dict[str, Callable[[SpeculationConfig, Vocabulary, Encode], Drafter]] = {
    GrammarDrafter.name: lambda config, vocabulary, encode: GrammarDrafter(vocabulary, encode),
    PromptLookup.name: lambda config, vocabulary, encode: PromptLookup(),
    SuffixDecoding.name: lambda config, vocabulary, encode: SuffixDecoding(
        config.suffix_memory_bytes if config.suffix_global else 0
    ),
    NgramTables.name: lambda config, vocabulary, encode: NgramTables(config.ngram_memory_bytes),
}

GRAMMAR = GrammarDrafter.name
"""The drafter that has nothing to say but of requests with a grammar."""
