"""Drafters that need no model of their own, by the names that a configuration uses."""

from __future__ import annotations

from collections.abc import Callable

from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.ports import Drafter

DRAFTERS: dict[str, Callable[[], Drafter]] = {PromptLookup.name: PromptLookup}
