"""Fields of the OpenAI and vLLM APIs that are known but not built: refused, never ignored.

Clients often send a field with the value that changes nothing; that value is accepted.
"""

from __future__ import annotations

from typing import Any

from actors.errors import InputError

_NO_NEUTRAL: tuple[Any, ...] = ()

_COMMON: dict[str, tuple[Any, ...]] = {
    # OpenAI
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    # vLLM
    "add_special_tokens": _NO_NEUTRAL,
    "allowed_token_ids": _NO_NEUTRAL,
    "bad_words": ([],),
    "cache_salt": _NO_NEUTRAL,
    "detokenize": (True,),
    "guided_choice": _NO_NEUTRAL,
    "guided_grammar": _NO_NEUTRAL,
    "guided_json": _NO_NEUTRAL,
    "guided_regex": _NO_NEUTRAL,
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "prompt_logprobs": _NO_NEUTRAL,
    "repetition_penalty": (1,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": _NO_NEUTRAL,
    "truncate_prompt_tokens": _NO_NEUTRAL,
    "typical_p": (1,),
    "use_beam_search": (False,),
}

COMPLETION_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **_COMMON,
    "response_format": ({"type": "text"},),
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
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": _NO_NEUTRAL,
    # vLLM
    "add_generation_prompt": (True,),
    "chat_template": _NO_NEUTRAL,
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "include_reasoning": (True, False),
}
"""The same for /v1/chat/completions."""


def without_unbuilt(
    body: dict[str, Any], neutral: dict[str, tuple[Any, ...]], n: object
) -> dict[str, Any]:
    """`body` without unbuilt fields that are null or change nothing.

    Args:
        n: the number of choices asked for: `best_of` changes nothing where it is the same.

    Raises:
        InputError: naming the first unbuilt field with another value.
    """
    kept: dict[str, Any] = {}
    for name, value in body.items():
        allowed = (1 if n is None else n,) if name == "best_of" else neutral.get(name)
        if allowed is None:
            kept[name] = value
        elif value is not None and not any(_same(value, other) for other in allowed):
            raise InputError(
                f"{name} is not supported by this server", name, "unsupported_parameter"
            )
    return kept


def _same(value: object, other: object) -> bool:
    """Equal as JSON values: 1 and 1.0 are, 1 and true are not."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other
