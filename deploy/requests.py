"""From checked request bodies and encoded prompts to generation requests, one for each choice.

Candidate i of prompt p has the seed that candidate i has for every prompt: a prompt's answers do
not depend on what it was sent with. Without `best_of` the candidates are the choices, and choice i
of prompt p has index `p * n + i`.

Room in the context: prompt and output together have at most the model's context. A prompt that
leaves no room is the prompt's fault; a `max_tokens` that asks for more than is left is refused
too, by its own name, as by OpenAI; left out, it is what is left (completions: at most 16).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.errors import InputError
from actors.request_manager.generation import (
    GenerationRequest,
    SpeculationOptions,
    StopConditions,
)
from actors.sampling import SEED_SPACE, SamplingParams, derived_seed
from deploy.backend import BackendDescription
from deploy.openai_schema import (
    TOKEN_ID_PATTERN,
    ChatRequest,
    CompletionRequest,
    GenerationFields,
    Speculation,
    stop_strings,
)
from deploy.prompts import EncodedPrompt, check_token_ids, context_exceeded
from deploy.structured_output import OutputGrammar

DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class Budget:
    """How much output was asked for, and by which field names."""

    asked: int | None
    default: int | None
    field: str
    prompt_field: str


@dataclass(frozen=True)
class Choice:
    """One output to generate, and its place in the answer.

    Attributes:
        index: where it stands; among more candidates than choices, where it was generated.
        shows_logprobs: they were asked for, and not only needed to choose the best.
    """

    index: int
    prompt: EncodedPrompt
    request: GenerationRequest
    shows_logprobs: bool = False


@dataclass(frozen=True)
class LogprobsWish:
    """`num_top` None: no log-probabilities; with `of_prompt` also those of the prompt."""

    num_top: int | None = None
    of_prompt: bool = False


def completion_budget(fields: CompletionRequest) -> Budget:
    return Budget(fields.max_tokens, DEFAULT_COMPLETION_TOKENS, "max_tokens", "prompt")


def chat_budget(fields: ChatRequest) -> Budget:
    if fields.max_tokens is not None and fields.max_completion_tokens is not None:
        raise InputError("give max_tokens or max_completion_tokens, not both", "max_tokens")
    if fields.max_tokens is not None:
        return Budget(fields.max_tokens, None, "max_tokens", "messages")
    return Budget(fields.max_completion_tokens, None, "max_completion_tokens", "messages")


def chat_logprobs(fields: ChatRequest) -> LogprobsWish:
    if fields.top_logprobs and not fields.logprobs:
        raise InputError("top_logprobs needs logprobs: true", "top_logprobs")
    return LogprobsWish((fields.top_logprobs or 0) if fields.logprobs else None)


def check_common(fields: GenerationFields, description: BackendDescription) -> None:
    """What can be said of a request before its prompt is encoded.

    Raises:
        InputError: naming the field.
    """
    if fields.model is not None and fields.model != description.model_name:
        raise UnknownModel(fields.model)
    if fields.stream_options is not None and not fields.stream:
        raise InputError("stream_options needs stream: true", "stream_options")
    options = fields.stream_options
    if options and options.continuous_usage_stats and not options.include_usage:
        raise InputError(
            "continuous_usage_stats needs include_usage: true",
            "stream_options.continuous_usage_stats",
        )
    if fields.return_trees and not fields.stream:
        raise InputError("return_trees needs stream: true", "return_trees")
    if fields.truncate_prompt_tokens == 0:
        raise InputError(
            "truncate_prompt_tokens leaves nothing of the prompt", "truncate_prompt_tokens"
        )
    if fields.best_of is not None and fields.best_of < fields.n:
        raise InputError(f"best_of is below n = {fields.n}", "best_of")
    if num_candidates(fields) > fields.n and fields.stream:
        raise InputError("the best can be told only at the end: not with stream", "best_of")
    check_token_ids(fields.stop_token_ids, description.vocab_size, "stop_token_ids")
    _speculation(fields.speculation).check(
        description.tree_nodes, description.drafters, description.verifications
    )


def build_choices(
    response_id: str,
    fields: GenerationFields,
    prompts: Sequence[EncodedPrompt],
    budget: Budget,
    logprobs: LogprobsWish,
    description: BackendDescription,
    seed: int,
    grammar: OutputGrammar,
) -> list[Choice]:
    """The generation requests of an answer, in order of their index.

    Args:
        grammar: what each output must follow.
        seed: used where the request has none.

    Raises:
        InputError: naming the field.
    """
    base_seed = (seed if fields.seed is None else fields.seed) % SEED_SPACE
    speculation = _speculation(fields.speculation)
    bias = _logit_bias(fields.logit_bias, description.vocab_size)
    per_prompt = num_candidates(fields)
    ranked = per_prompt > fields.n
    num_logprobs = 0 if ranked and logprobs.num_top is None else logprobs.num_top
    choices = []
    for place, prompt in enumerate(prompts):
        stop = _stop(fields, _output_tokens(budget, prompt, description.max_context_tokens))
        for number in range(per_prompt):
            index = place * per_prompt + number
            request = GenerationRequest(
                request_id=f"{response_id}-{index}",
                prompt_ids=prompt.token_ids,
                sampling=_sampling(fields, bias, derived_seed(base_seed, number)),
                stop=stop,
                num_logprobs=num_logprobs,
                prompt_logprobs=logprobs.num_top if logprobs.of_prompt else None,
                grammar=grammar.source,
                grammar_param=grammar.param,
                speculation=speculation,
                priority=fields.priority,
                return_trees=fields.return_trees,
            )
            choices.append(Choice(index, prompt, request, logprobs.num_top is not None))
    return choices


def num_candidates(fields: GenerationFields) -> int:
    """Outputs to generate for each prompt."""
    return fields.n if fields.best_of is None else fields.best_of


class UnknownModel(InputError):
    """A model that is not served here (HTTP 404)."""

    def __init__(self, model: str) -> None:
        super().__init__(f"the model {model!r} is not served here", "model", "model_not_found")
        self.model = model

    def __reduce__(self) -> tuple[type[UnknownModel], tuple[str]]:  # type: ignore[override]
        return type(self), (self.model,)


def _output_tokens(budget: Budget, prompt: EncodedPrompt, max_context: int) -> int:
    room = max_context - len(prompt.token_ids)
    if room == 0 and budget.asked != 0:
        raise context_exceeded(
            f"{budget.prompt_field} fills the model's context of {max_context} tokens",
            budget.prompt_field,
        )
    if budget.asked is None:
        return room if budget.default is None else min(budget.default, room)
    if budget.asked > room:
        tokens, leave = ("token", "leaves") if len(prompt.token_ids) == 1 else ("tokens", "leave")
        raise context_exceeded(
            f"{budget.field} is {budget.asked}, but {len(prompt.token_ids)} {tokens} of "
            f"{budget.prompt_field} {leave} {room} of the model's context of {max_context}",
            budget.field,
        )
    return budget.asked


def _logit_bias(bias: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    for name in bias:
        if not re.fullmatch(TOKEN_ID_PATTERN, name):
            raise InputError("logit_bias is by token id, not by text", "logit_bias")
    check_token_ids([int(name) for name in bias], vocab_size, "logit_bias")
    return tuple((int(name), float(value)) for name, value in bias.items())


def _sampling(
    fields: GenerationFields, bias: tuple[tuple[int, float], ...], seed: int
) -> SamplingParams:
    return SamplingParams(
        temperature=fields.temperature,
        top_k=max(fields.top_k, 0),
        top_p=fields.top_p,
        min_p=fields.min_p,
        min_tokens=fields.min_tokens,
        seed=seed,
        repetition_penalty=fields.repetition_penalty,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        logit_bias=bias,
    )


def _stop(fields: GenerationFields, max_tokens: int) -> StopConditions:
    if fields.min_tokens > max_tokens:
        raise InputError(f"min_tokens is above the {max_tokens} tokens at most", "min_tokens")
    return StopConditions(
        max_tokens=max_tokens,
        stop_token_ids=tuple(fields.stop_token_ids),
        stop_strings=stop_strings(fields.stop),
        ignore_eos=fields.ignore_eos,
        show_stop=fields.include_stop_str_in_output,
    )


def _speculation(wish: Speculation | None) -> SpeculationOptions:
    if wish is None:
        return SpeculationOptions()
    return SpeculationOptions(
        enabled=wish.enabled is not False,
        max_nodes=wish.max_nodes,
        drafters=None if wish.drafters is None else tuple(wish.drafters),
        verification=wish.verification,
    )
