"""Commit: from the run of tokens that a step brought to what becomes part of the output.

One pure function appends the tokens one at a time, so that the result does not depend on how the
LLM's tokens are grouped into steps. The rules:

- The token that ends an output belongs to it: it counts in the completion tokens.
- The text of a stop token or of EOS is not shown; a stop string is cut off with all that follows.
  With `show_stop` the stop token's text and the stop string are shown.
- A stop token wins over a stop string, and both over the limits, where they end with one token. A
  stop beyond a limit was never reached: the reason is `length`.
- The first `min_tokens` tokens cannot end an output, but by the limits; a stop string that is
  complete within them is ordinary text.
- Text that could still grow into a stop string is held back, and shown when the output ends.

Knows no grammar; token IDs that the vocabulary does not have add no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from actors.request_manager.generation import FinishReason, StopConditions
from actors.request_manager.stop_strings import StopMatcher
from actors.vocabulary import Vocabulary


class OutputRules:
    """When one request's output ends; built once for it.

    Args:
        stop: what the request asked for.
        vocabulary: the LLM's; says what ends a text.
        prompt_len: tokens of the prompt.
        max_context_tokens: prompt and output together can be no longer.
        min_tokens: so many tokens come before any that can end the output.

    Attributes:
        max_tokens: what `stop` and the context leave.
    """

    def __init__(
        self,
        stop: StopConditions,
        vocabulary: Vocabulary,
        prompt_len: int,
        max_context_tokens: int,
        min_tokens: int = 0,
    ) -> None:
        self.vocabulary = vocabulary
        self.max_tokens = min(stop.max_tokens, max_context_tokens - prompt_len)
        self.min_tokens = min_tokens
        eos_ids = frozenset() if stop.ignore_eos else vocabulary.eos_ids
        self.end_ids = eos_ids | frozenset(stop.stop_token_ids)
        self.show_stop = stop.show_stop
        self.matcher = StopMatcher(text.encode() for text in stop.stop_strings)


@dataclass(frozen=True)
class OutputState:
    """An output so far; the default is an empty one.

    Attributes:
        num_tokens: output tokens, one that ended the output included.
        num_bytes: bytes of their text.
        visible_bytes: how many of them may be shown.
        matcher_state: of the stop strings.
        finish_reason: why the output is over; None while it is not.
    """

    num_tokens: int = 0
    num_bytes: int = 0
    visible_bytes: int = 0
    matcher_state: int = StopMatcher.START
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Committed:
    """The part of a run of tokens that became output, and the output after it."""

    token_ids: tuple[int, ...]
    state: OutputState


def commit(rules: OutputRules, state: OutputState, token_ids: Sequence[int]) -> Committed:
    """Append `token_ids` to an output until it ends; what comes after its end is dropped.

    The state after tokens that were delivered long ago (a request resumed) comes from the same
    call, with the empty state and those tokens. Takes time in the new tokens' text only.
    """
    if state.finish_reason is None and state.num_tokens >= rules.max_tokens:
        state = _finished(state, FinishReason.LENGTH)
    num_kept = 0
    for token in token_ids:
        if state.finish_reason is not None:
            break
        state = _append(rules, state, token)
        num_kept += 1
    return Committed(tuple(token_ids[:num_kept]), state)


def _append(rules: OutputRules, state: OutputState, token: int) -> OutputState:
    """The output with one more token."""
    may_end = state.num_tokens >= rules.min_tokens
    state = replace(state, num_tokens=state.num_tokens + 1)
    start = state.num_bytes
    text = rules.vocabulary.text_bytes((token,))
    if may_end and token in rules.end_ids:
        shown = len(text) if rules.show_stop else 0
        return _finished(replace(state, num_bytes=start + shown), FinishReason.STOP)
    if may_end:
        matcher_state, match = rules.matcher.find(state.matcher_state, text)
    else:
        matcher_state, match = rules.matcher.skip(state.matcher_state, text), None
    num_bytes = start + len(text)
    visible_bytes = num_bytes - rules.matcher.held_bytes(matcher_state)
    state = replace(
        state, num_bytes=num_bytes, visible_bytes=visible_bytes, matcher_state=matcher_state
    )
    if match is not None:
        shown = rules.matcher.matched_bytes(matcher_state) if rules.show_stop else 0
        return replace(state, visible_bytes=start + match + shown, finish_reason=FinishReason.STOP)
    if state.num_tokens >= rules.max_tokens:
        return _finished(state, FinishReason.LENGTH)
    return state


def _finished(state: OutputState, reason: FinishReason) -> OutputState:
    """The output at its end: nothing is held back any more."""
    return replace(state, visible_bytes=state.num_bytes, finish_reason=reason)
