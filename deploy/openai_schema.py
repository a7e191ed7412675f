"""Request bodies of `/v1/completions` and `/v1/chat/completions`: the fields that are built.

Types are strict: no number out of a string or a boolean, no NaN, no field that is not listed
(known but unbuilt ones are dealt with before, in `deploy.unbuilt`). What needs the tokenizer or
the model's size is checked in `deploy.prompts` and `deploy.requests`; the ranges of sampling
parameters in `actors.sampling`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, FiniteFloat, Tag

from actors.request_manager.generation import MAX_LOGPROBS

MAX_CHOICES_PER_PROMPT = 128
MAX_COUNT = (1 << 31) - 1

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
PositiveCount = Annotated[int, Field(ge=1, le=MAX_COUNT)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]

Empty = Annotated[list[Any], Field(max_length=0)] | None


def _prompt_kind(value: object) -> str:
    """Which of the four forms a prompt is meant to have, so that errors speak of that one."""
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else None
    if isinstance(first, list):
        return "many_ids"
    return "texts" if isinstance(first, str) else "ids"


def _one_or_many(value: object) -> str:
    return "many" if isinstance(value, list) else "one"


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], Field(fail_fast=True), Tag("many_ids")],
    Discriminator(_prompt_kind),
]
Stop = Annotated[
    Annotated[str, Tag("one")] | Annotated[Texts, Tag("many")], Discriminator(_one_or_many)
]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StreamOptions(_Strict):
    """Only beside `stream: true`. The last two are accepted as false alone."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: Literal[False] | None = None


class Speculation(_Strict):
    """A request's wishes; none of them changes the text."""

    enabled: bool | None = None
    max_nodes: PositiveCount | None = None
    drafters: Texts | None = None
    verification: str | None = None


class GenerationFields(_Strict):
    """What both endpoints share."""

    model: str | None = None
    temperature: FiniteFloat = 1.0
    top_p: FiniteFloat = 1.0
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT)] = 0
    """0 keeps all tokens, and so does -1, as in vLLM."""
    min_p: FiniteFloat = 0.0
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: Stop | None = None
    stop_token_ids: TokenIds = []
    ignore_eos: bool = False
    min_tokens: Count = 0
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES_PER_PROMPT)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)] = 0
    """Lower ones run first, as in vLLM."""
    user: str | None = None
    """A label; nothing depends on it."""
    return_token_ids: bool = False
    speculation: Speculation | None = None


class CompletionRequest(GenerationFields):
    """Body of `/v1/completions`."""

    prompt: Prompt
    max_tokens: Count | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = False


class TextPart(_Strict):
    """A piece of a message; only text is supported."""

    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    """One turn of a conversation; the model's chat template may take fewer roles than these."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[str, Tag("one")]
        | Annotated[list[TextPart], Field(fail_fast=True, min_length=1), Tag("many")],
        Discriminator(_one_or_many),
    ]
    name: str | None = None
    # An earlier answer, sent back as it came, carries these; they are taken when they say nothing.
    annotations: Empty = None
    audio: None = None
    function_call: None = None
    refusal: None = None
    tool_calls: Empty = None

    def text(self) -> str:
        """The content as one string; parts are joined by line breaks."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class ChatRequest(GenerationFields):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)]
    max_tokens: PositiveCount | None = None
    max_completion_tokens: PositiveCount | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    safety_identifier: str | None = None
    """The newer name of `user`."""


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings of a request, whichever form they were sent in."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
