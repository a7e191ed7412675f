"""What a request must satisfy before it is queued; every refusal names the field."""

from __future__ import annotations

from collections.abc import Collection

from actors.errors import InputError
from actors.messages import MAX_GRAMMAR_BYTES, LLMDescription
from actors.request_manager.config import SpeculationConfig
from actors.request_manager.generation import MAX_LOGPROBS, GenerationRequest
from actors.sampling import Range
from actors.verification import Rule


def check_request(
    asked: GenerationRequest,
    llm: LLMDescription,
    speculation: SpeculationConfig,
    drafters: Collection[str],
) -> None:
    """Raise InputError unless the LLM can run the request as it stands.

    Args:
        drafters: what it may call them by.
    """
    _check_tokens(asked, llm)
    for name in ("num_logprobs", "prompt_logprobs"):
        wanted = getattr(asked, name)
        if wanted is not None and not 0 <= wanted <= MAX_LOGPROBS:
            raise InputError(f"{name} must be between 0 and {MAX_LOGPROBS}", name)
    _check_grammar(asked)
    asked.speculation.check(Range(0, speculation.max_tree_nodes), drafters, tuple(Rule))


def rule_of(asked: GenerationRequest, speculation: SpeculationConfig) -> Rule:
    """The rule that verifies the drafts of a request that was checked.

    A greedy one has a single right answer, which every lossless rule finds alike.
    """
    if asked.sampling.is_greedy:
        return Rule.COUPLED
    return Rule(asked.speculation.verification or speculation.verification)


def _check_grammar(asked: GenerationRequest) -> None:
    if not asked.grammar:
        return
    if len(asked.grammar.encode()) > MAX_GRAMMAR_BYTES:
        raise InputError(f"a grammar has at most {MAX_GRAMMAR_BYTES} bytes", asked.grammar_param)
    # At its end a grammar allows nothing but EOS.
    if asked.sampling.min_tokens:
        raise InputError("the output must follow a grammar: not with min_tokens", "min_tokens")
    if asked.stop.ignore_eos:
        raise InputError("the output must follow a grammar: not with ignore_eos", "ignore_eos")


def _check_tokens(asked: GenerationRequest, llm: LLMDescription) -> None:
    if not asked.prompt_ids:
        raise InputError("the prompt is empty", "prompt")
    for token in (*asked.prompt_ids, *asked.emitted_ids):
        if not 0 <= token < llm.vocab_size:
            raise InputError(f"token id {token} is outside the vocabulary", "prompt")
    for token in asked.stop.stop_token_ids:
        if not 0 <= token < llm.vocab_size:
            raise InputError(f"token id {token} is outside the vocabulary", "stop_token_ids")
    room = llm.max_context_tokens - (asked.stop.max_tokens > 0)
    if len(asked.prompt_ids) > room:
        raise InputError(
            f"the prompt has {len(asked.prompt_ids)} tokens; the model's context is "
            f"{llm.max_context_tokens} tokens, output included",
            "prompt",
            "context_length_exceeded",
        )
