"""From text and messages to token ids, with the model's own `transformers` tokenizer.

Text is tokenised as `transformers` does it by default, special tokens written in it included: who
may send text may send any token id anyway. The tokenizer is used from one thread of its own,
because it is not safe to share and a long prompt must not hold up the streams of others.

An empty prompt is refused in every form, also where the tokenizer would put a token before it. A
message may be empty: the chat template surrounds it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import jinja2

from actors.errors import InputError
from actors.vocabulary import Vocabulary
from deploy.backend import BackendDescription
from deploy.chat_messages import template_messages
from deploy.openai_schema import ChatRequest

Result = TypeVar("Result")

CONTEXT_CODE = "context_length_exceeded"


class Tokenizer(Protocol):
    """The part of a `transformers` tokenizer that is used here."""

    chat_template: Any

    def __call__(self, text: str) -> Mapping[str, Any]: ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt ready for the LLM.

    Attributes:
        token_ids: at least one, at most the model's context, each in its vocabulary.
        text: what the caller wrote, where that was text; for `echo`.
    """

    token_ids: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True)
class Rendering:
    """What the chat template is given."""

    conversation: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool

    @property
    def has_calls(self) -> bool:
        return any("tool_calls" in turn for turn in self.conversation)

    def without_calls(self) -> Rendering:
        kept = [
            {name: value for name, value in turn.items() if name != "tool_calls"}
            for turn in self.conversation
        ]
        return replace(self, conversation=kept)

    def texts(self) -> Iterator[str]:
        """All text that callers put in, and perhaps more."""
        for turn in self.conversation:
            yield turn["content"]
        yield json.dumps([self.tools, [turn.get("tool_calls") for turn in self.conversation]])


class PromptEncoder:
    """Encodes prompts for one model."""

    def __init__(
        self, tokenizer: Tokenizer, vocabulary: Vocabulary, description: BackendDescription
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = description.vocab_size
        self._max_tokens = description.max_context_tokens
        self._max_text_bytes = self._max_tokens * _longest_token_bytes(vocabulary)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    async def completion(
        self, prompt: str | list[int] | list[str] | list[list[int]], truncate: int | None = None
    ) -> list[EncodedPrompt]:
        """One prompt for each text or list of ids.

        Args:
            truncate: keep so many tokens at the end of each; -1 keeps as many as fit.

        Raises:
            InputError: on `prompt`, if one is empty, too long or not in the vocabulary.
        """
        if isinstance(prompt, str):
            return [await self._text(prompt, truncate)]
        if not prompt:
            raise _empty("prompt")
        if isinstance(prompt[0], int):
            return [self._ids(prompt, truncate)]
        return [
            await self._text(item, truncate) if isinstance(item, str) else self._ids(item, truncate)
            for item in prompt
        ]

    async def chat(self, fields: ChatRequest) -> EncodedPrompt:
        """A conversation, put into words by the model's chat template.

        Raises:
            InputError: on `messages`, if there are none, they are too long, or the template
                refuses them; on `tools`, if the template has no place for them.
        """
        if not fields.messages:
            raise _empty("messages")
        if self._tokenizer.chat_template is None:
            raise InputError("this model has no chat template: use /v1/completions", "messages")
        if len(fields.messages) > self._max_tokens:  # each has at least one token
            raise self._too_long("messages")
        rendering = _rendering(fields)
        self._check_text_length(rendering.texts(), "messages")
        encoded = await self._in_thread(lambda: self._render_checked(rendering))
        return EncodedPrompt(self._checked(encoded, "messages", fields.truncate_prompt_tokens))

    async def _text(self, text: str, truncate: int | None) -> EncodedPrompt:
        if not text:
            raise _empty("prompt")
        self._check_text_length((text,), "prompt")
        encoded = await self._in_thread(lambda: self._tokenizer(text)["input_ids"])
        kept = self._checked(encoded, "prompt", truncate)
        return EncodedPrompt(kept, text if len(kept) == len(encoded) else None)

    def _ids(self, token_ids: list[int], truncate: int | None) -> EncodedPrompt:
        return EncodedPrompt(self._checked(token_ids, "prompt", truncate))

    def _render_checked(self, rendering: Rendering) -> list[int]:
        """Refuse what the template would pass over in silence."""
        encoded = self._render(rendering)
        if rendering.tools and encoded == self._render(replace(rendering, tools=None)):
            raise InputError("this model's chat template has no place for tools", "tools")
        if rendering.has_calls and encoded == self._render(rendering.without_calls()):
            raise InputError("this model's chat template has no place for tool_calls", "messages")
        return encoded

    def _render(self, rendering: Rendering) -> list[int]:
        try:
            encoded = self._tokenizer.apply_chat_template(
                rendering.conversation,
                tools=rendering.tools,
                add_generation_prompt=rendering.add_generation_prompt,
                continue_final_message=rendering.continue_final_message,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise InputError(
                f"the model's chat template refuses these messages: {error}", "messages"
            ) from error
        token_ids: list[int] = encoded["input_ids"]
        return token_ids

    def _check_text_length(self, texts: Iterable[str], param: str) -> None:
        """Refuse text that cannot fit before any work is put into it."""
        if sum(len(text.encode()) for text in texts) > self._max_text_bytes:
            raise self._too_long(param)

    def _too_long(self, param: str) -> InputError:
        return context_exceeded(
            f"{param} is longer than the model's context of {self._max_tokens} tokens", param
        )

    def _checked(
        self, token_ids: Sequence[int], param: str, truncate: int | None
    ) -> tuple[int, ...]:
        if not token_ids:
            raise _empty(param)
        if truncate is not None:
            # One place of the context is left for the output.
            token_ids = token_ids[-(self._max_tokens - 1 if truncate == -1 else truncate) :]
        if len(token_ids) > self._max_tokens:
            raise context_exceeded(
                f"{param} has {len(token_ids)} tokens, the model's context only {self._max_tokens}",
                param,
            )
        check_token_ids(token_ids, self._vocab_size, param)
        return tuple(token_ids)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def context_exceeded(message: str, param: str) -> InputError:
    """The error for what does not fit into the model's context."""
    return InputError(message, param, CONTEXT_CODE)


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raise InputError if an id is none of the model's."""
    for token in token_ids:
        if not 0 <= token < vocab_size:
            raise InputError(
                f"{param} holds a token id outside the vocabulary of {vocab_size}",
                param,
                "invalid_token_id",
            )


def _empty(param: str) -> InputError:
    return InputError(f"{param} must not be empty", param, f"empty_{param}")


def _rendering(fields: ChatRequest) -> Rendering:
    goes_on = fields.continue_final_message
    opens = not goes_on if fields.add_generation_prompt is None else fields.add_generation_prompt
    if opens and goes_on:
        raise InputError(
            "continue_final_message leaves no place for a new turn: not with add_generation_prompt",
            "add_generation_prompt",
        )
    tools = [] if fields.tool_choice == "none" else [tool.for_template() for tool in fields.tools]
    return Rendering(template_messages(fields.messages), tools or None, opens, goes_on)


def _longest_token_bytes(vocabulary: Vocabulary) -> int:
    """The most bytes of text that can become one token; special tokens are written by name."""
    pairs = zip(vocabulary.token_bytes, vocabulary.token_names, strict=True)
    return max(max(len(text), len(name.encode())) for text, name in pairs)
