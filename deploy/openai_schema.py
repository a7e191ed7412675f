"""Request bodies of `/v1/completions` and `/v1/chat/completions`: the fields that are built.

Types are strict: no number out of a string or a boolean, no NaN, no field that is not listed
(known but unbuilt ones are dealt with before, in `deploy.unbuilt`). The limits are those of
`actors.sampling` and `actors.request_manager.generation`, which count strings in bytes. What needs
the tokenizer or the model's size is checked in `deploy.prompts` and `deploy.requests`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, FiniteFloat, Tag

from actors.request_manager.drafter_names import SSM
from actors.request_manager.drafters import DRAFTERS
from actors.request_manager.generation import (
    MAX_LOGPROBS,
    MAX_STOP_STRING_BYTES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from actors.sampling import BIAS, MAX_BIASED_TOKENS, MAX_COUNT, RANGES
from deploy.chat_messages import MAX_TOOLS, ChatMessage, Tool, one_or_many
from deploy.strict import Strict, described, within
from deploy.structured_output import StructuredFields

MAX_CHOICES_PER_PROMPT = 128
TOKEN_ID_PATTERN = "^(0|[1-9][0-9]{0,9})$"
"""Of a token id as a name."""

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
PositiveCount = Annotated[int, Field(ge=1, le=MAX_COUNT)]
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
NonEmptyText = Annotated[str, described(minLength=1)]
NonEmptyIds = Annotated[list[int], Field(fail_fast=True), described(minItems=1)]


def _prompt_kind(value: object) -> str:
    """Which of the four forms a prompt is meant to have, so that errors speak of that one."""
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else None
    if isinstance(first, list):
        return "many_ids"
    return "texts" if isinstance(first, str) else "ids"


Prompt = Annotated[
    Annotated[NonEmptyText, Tag("text")]
    | Annotated[list[NonEmptyText], Field(fail_fast=True), described(minItems=1), Tag("texts")]
    | Annotated[NonEmptyIds, Tag("ids")]
    | Annotated[list[NonEmptyIds], Field(fail_fast=True), described(minItems=1), Tag("many_ids")],
    Discriminator(_prompt_kind),
]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_STRING_BYTES)]
Stop = Annotated[
    Annotated[StopText, Tag("one")]
    | Annotated[list[StopText], Field(fail_fast=True, max_length=MAX_STOP_STRINGS), Tag("many")],
    Discriminator(one_or_many),
]
Bias = Annotated[FiniteFloat, within(BIAS)]


class StreamOptions(Strict):
    """Only beside `stream: true`."""

    include_usage: bool | None = None
    """Close the stream with a chunk that carries the usage and no choices."""
    continuous_usage_stats: bool | None = None
    """With `include_usage`: let every chunk carry the usage so far."""
    include_obfuscation: Literal[False] | None = None


_DRAFTERS = (
    "Names of those that may be asked, of the ones that the server runs: "
    f"{', '.join(sorted([*DRAFTERS, SSM]))}. Those that learn from answers learn nothing from a "
    "request that leaves them out."
)


class Speculation(Strict):
    """A request's wishes; none of them changes the text."""

    enabled: bool | None = None
    max_nodes: int | None = None
    """Draft nodes in each step at most; 0 for none."""
    drafters: Annotated[Texts | None, Field(description=_DRAFTERS)] = None
    verification: str | None = None


class GenerationFields(StructuredFields):
    """What both endpoints share."""

    model: str | None = None
    temperature: Annotated[FiniteFloat, within(RANGES["temperature"])] = 1.0
    """0 is greedy."""
    top_p: Annotated[FiniteFloat, within(RANGES["top_p"])] = 1.0
    """Keep the smallest set of most probable tokens whose mass reaches this."""
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT)] = 0
    """Keep the most probable tokens; 0 keeps all, and so does -1, as in vLLM."""
    min_p: Annotated[FiniteFloat, within(RANGES["min_p"])] = 0.0
    """Keep tokens at least this fraction as probable as the best one."""
    presence_penalty: Annotated[FiniteFloat, within(RANGES["presence_penalty"])] = 0.0
    """Taken off the logit of every token that stands in the output."""
    frequency_penalty: Annotated[FiniteFloat, within(RANGES["frequency_penalty"])] = 0.0
    """Taken off a token's logit for each time that it stands in the output."""
    repetition_penalty: Annotated[FiniteFloat, within(RANGES["repetition_penalty"])] = 1.0
    """Divides the positive logits of tokens in prompt and output, multiplies the negative ones."""
    logit_bias: Annotated[
        dict[str, Bias],
        Field(max_length=MAX_BIASED_TOKENS),
        described(propertyNames={"pattern": TOKEN_ID_PATTERN}),
    ] = Field(default_factory=dict)
    """From token id to what is added to its logit."""
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    """With a seed and equal parameters the text is equal."""
    stop: Stop | None = None
    """End the output where the first of these is complete; it is cut off."""
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKEN_IDS)] = Field(
        default_factory=list
    )
    """End the output after any of these."""
    include_stop_str_in_output: bool = False
    """Leave the stop string, or the stop token's text, at the end of the output."""
    ignore_eos: bool = False
    """Go on after the model's end-of-text token."""
    min_tokens: Count = 0
    """EOS and stop tokens cannot be drawn before so many tokens."""
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES_PER_PROMPT)] = 1
    """Choices for each prompt."""
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES_PER_PROMPT)] | None = None
    """Generate so many for each prompt, and return the `n` with the highest log-probability per
    token. Not with `stream`."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)] = 0
    """Lower ones run first, as in vLLM."""
    user: str | None = None
    """A label; nothing depends on it."""
    truncate_prompt_tokens: (
        Annotated[int, Field(ge=-1, le=MAX_COUNT), described(**{"not": {"const": 0}})] | None
    ) = None
    """Keep only so many tokens at the end of the prompt; -1 keeps what the context takes."""
    return_token_ids: bool = False
    """Add `token_ids` and `prompt_token_ids` to each choice."""
    return_trees: bool = False
    """Only with `stream: true`: add `trees` to the choices of chunks: what was drafted in each step
    that the chunk came from, by whom, what was accepted, and how long the phases took."""
    speculation: Speculation | None = None


class CompletionRequest(GenerationFields):
    """Body of `/v1/completions`."""

    prompt: Prompt
    """Text, token ids, or a list of either: one answer holds the choices of all."""
    max_tokens: Count | None = None
    """16 if left out, or what the context leaves."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Log-probabilities of the tokens and of so many of the most probable ones, by the model's raw
    logits: before temperature, bias, penalties and truncation (vLLM's `raw_logprobs`)."""
    echo: bool = False
    """Put the prompt before the output; with `logprobs` score it too."""


class ChatRequest(GenerationFields):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True), described(minItems=1)]
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    """Put into the prompt by the model's chat template; calls come back as text."""
    tool_choice: Literal["none", "auto"] | None = None
    """`none` leaves the tools out of the prompt."""
    add_generation_prompt: bool | None = None
    """Open a turn of the model after the messages; false beside `continue_final_message`."""
    continue_final_message: bool = False
    """Go on with the last message instead of opening a turn."""
    max_tokens: PositiveCount | None = None
    """The older name of `max_completion_tokens`."""
    max_completion_tokens: PositiveCount | None = None
    """What the context leaves, if left out."""
    logprobs: bool = False
    """Log-probabilities of the output's tokens, by the model's raw logits: before temperature,
    bias, penalties and truncation (vLLM's `raw_logprobs`)."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Those of so many of the most probable tokens, too."""
    safety_identifier: str | None = None
    """The newer name of `user`."""


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings of a request, whichever form they were sent in."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
