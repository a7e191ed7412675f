"""From text and messages to token ids, with the model's own `transformers` tokenizer.

Text is tokenised as `transformers` does it by default, special tokens written in it included: who
may send text may send any token id anyway. The tokenizer is used from one thread of its own,
because it is not safe to share and a long prompt must not hold up the streams of others.

An empty prompt is refused in every form, also where the tokenizer would put a token before it. A
message may be empty: the chat template surrounds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jinja2

from actors.errors import InputError
from actors.vocabulary import Vocabulary
from deploy.backend import BackendDescription
from deploy.openai_schema import ChatMessage

Result = TypeVar("Result")

CONTEXT_CODE = "context_length_exceeded"


class Tokenizer(Protocol):
    """The part of a `transformers` tokenizer that is used here."""

    chat_template: Any

    def __call__(self, text: str) -> Mapping[str, Any]: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool
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
        self, prompt: str | list[int] | list[str] | list[list[int]]
    ) -> list[EncodedPrompt]:
        """One prompt for each text or list of ids.

        Raises:
            InputError: on `prompt`, if one is empty, too long or not in the vocabulary.
        """
        if isinstance(prompt, str):
            return [await self._text(prompt)]
        if not prompt:
            raise _empty("prompt")
        if isinstance(prompt[0], int):
            return [self._ids(prompt)]
        return [
            await self._text(item) if isinstance(item, str) else self._ids(item) for item in prompt
        ]

    async def chat(self, messages: Sequence[ChatMessage]) -> EncodedPrompt:
        """A conversation, put into words by the model's chat template.

        Raises:
            InputError: on `messages`, if there are none, they are too long, or the template
                refuses them.
        """
        if not messages:
            raise _empty("messages")
        if self._tokenizer.chat_template is None:
            raise InputError("this model has no chat template: use /v1/completions", "messages")
        conversation = [_as_dict(message) for message in messages]
        if len(conversation) > self._max_tokens:  # each has at least one token
            raise self._too_long("messages")
        self._check_text_length((turn["content"] for turn in conversation), "messages")
        encoded = await self._in_thread(lambda: self._apply_template(conversation))
        return EncodedPrompt(self._checked(encoded, "messages"))

    async def _text(self, text: str) -> EncodedPrompt:
        if not text:
            raise _empty("prompt")
        self._check_text_length((text,), "prompt")
        encoded = await self._in_thread(lambda: self._tokenizer(text)["input_ids"])
        return EncodedPrompt(self._checked(encoded, "prompt"), text)

    def _ids(self, token_ids: list[int]) -> EncodedPrompt:
        return EncodedPrompt(self._checked(token_ids, "prompt"))

    def _apply_template(self, conversation: list[dict[str, str]]) -> list[int]:
        try:
            encoded = self._tokenizer.apply_chat_template(conversation, add_generation_prompt=True)
        except (jinja2.TemplateError, TypeError) as error:
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

    def _checked(self, token_ids: Sequence[int], param: str) -> tuple[int, ...]:
        if not token_ids:
            raise _empty(param)
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


def _as_dict(message: ChatMessage) -> dict[str, str]:
    named = {} if message.name is None else {"name": message.name}
    return {"role": message.role, "content": message.text(), **named}


def _longest_token_bytes(vocabulary: Vocabulary) -> int:
    """The most bytes of text that can become one token; special tokens are written by name."""
    pairs = zip(vocabulary.token_bytes, vocabulary.token_names, strict=True)
    return max(max(len(text), len(name.encode())) for text, name in pairs)
