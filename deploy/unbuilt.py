"""Fields of the OpenAI and vLLM APIs that are known but not built: refused, never ignored.

Clients often send a field with the value that changes nothing; that value is accepted.
"""

from __future__ import annotations

from typing import Any

from actors.errors import InputError

_NO_NEUTRAL: tuple[Any, ...] = ()

_COMMON: dict[str, tuple[Any, ...]] = {
    # vLLM
    "add_special_tokens": _NO_NEUTRAL,
    "allowed_token_ids": _NO_NEUTRAL,
    "bad_words": ([],),
    "cache_salt": _NO_NEUTRAL,
    "detokenize": (True,),
    "guided_grammar": _NO_NEUTRAL,
    "length_penalty": (1,),
    "prompt_logprobs": _NO_NEUTRAL,
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "typical_p": (1,),
    "use_beam_search": (False,),
}

COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **_COMMON,
    "suffix": ("",),
}
"""For each unbuilt field of /v1/completions, the values that change nothing."""

CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **_COMMON,
    # OpenAI
    "audio": _NO_NEUTRAL,
    "function_call": ("none", "auto"),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": _NO_NEUTRAL,
    "parallel_tool_calls": (True, False),
    "prediction": _NO_NEUTRAL,
    "prompt_cache_key": _NO_NEUTRAL,
    "prompt_cache_options": _NO_NEUTRAL,
    "prompt_cache_retention": _NO_NEUTRAL,
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": _NO_NEUTRAL,
    # vLLM
    "chat_template": _NO_NEUTRAL,
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "echo": (False,),
    "include_reasoning": (True, False),
}
"""The same for /v1/chat/completions."""


def without_unbuilt(body: dict[str, Any], neutral: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """`body` without unbuilt fields that are null or change nothing.

    Raises:
        InputError: naming the first unbuilt field with another value.
    """
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name not in neutral:
            kept[name] = value
        elif value is not None and not any(_same(value, other) for other in neutral[name]):
            raise InputError(
                f"{name} is not supported by this server", name, "unsupported_parameter"
            )
    return kept


def _same(value: object, other: object) -> bool:
    """Equal as JSON values: 1 and 1.0 are, 1 and true are not."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other
