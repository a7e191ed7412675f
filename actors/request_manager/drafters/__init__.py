"""Drafters by the names that a configuration uses; all but one need no model of their own."""

from __future__ import annotations

from collections.abc import Callable

from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.ports import Drafter

DRAFTERS: dict[str, Callable[[], Drafter]] = {PromptLookup.name: PromptLookup}

SSM = "ssm"
"""The drafter that needs draft models, the configuration's `ssms`."""
