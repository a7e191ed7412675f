"""The manager's face: what an ingress asks for, and what it is told while tokens come.

Token IDs only; text stays at the ingress, but for stop strings, which are matched where tokens
are committed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from actors.errors import InputError
from actors.messages import TopLogprobs
from actors.request_manager.step_tree import StepTree, joined
from actors.sampling import Range, SamplingParams

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 1024
MAX_STOP_TOKEN_IDS = 512
MAX_LOGPROBS = 20
NO_TOP = TopLogprobs((), ())


class FinishReason(StrEnum):
    """Why a request ended; the words of the OpenAI API, and two of ours."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True)
class StopConditions:
    """When an output ends.

    Attributes:
        max_tokens: at most this many output tokens; 0 generates nothing.
        stop_token_ids: end after any of these; the token counts, its text is not shown.
        stop_strings: end where the first of these is complete; it is cut from the text, the
            token that completed it counts.
        ignore_eos: go on after the model's own end-of-text token.
        show_stop: leave the stop string, or the stop token's text, at the end of the output.
    """

    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    show_stop: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise InputError("max_tokens must not be negative", "max_tokens")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InputError(f"at most {MAX_STOP_TOKEN_IDS} stop_token_ids", "stop_token_ids")
        if len(self.stop_strings) > MAX_STOP_STRINGS:
            raise InputError(f"at most {MAX_STOP_STRINGS} stop strings", "stop")
        for text in self.stop_strings:
            if not 1 <= len(text.encode()) <= MAX_STOP_STRING_BYTES:
                raise InputError(f"a stop string has 1 to {MAX_STOP_STRING_BYTES} bytes", "stop")


@dataclass(frozen=True)
class SpeculationOptions:
    """A request's own wishes about speculation; None leaves the server's setting.

    None of these can change how the output is distributed, only when it arrives, but where the
    verification rule, here or the server's, is `typical`.
    """

    enabled: bool = True
    max_nodes: int | None = None
    drafters: tuple[str, ...] | None = None
    verification: str | None = None

    def check(self, nodes: Range, drafters: Collection[str], rules: Collection[str]) -> None:
        """Raise InputError unless this can be had.

        Args:
            nodes: what `max_nodes` may be.
            drafters: what they may be called by.
            rules: names of the verification rules.
        """
        if self.max_nodes is not None and not nodes.holds(self.max_nodes):
            raise InputError(f"speculation.max_nodes must be {nodes}", "speculation.max_nodes")
        if unknown := sorted(set(self.drafters or ()) - set(drafters)):
            raise InputError(
                f"speculation.drafters: no drafter named {', '.join(unknown)}; "
                f"there are: {', '.join(sorted(drafters)) or 'none'}",
                "speculation.drafters",
            )
        if self.verification not in (None, *rules):
            raise InputError(
                f"speculation.verification can be {', '.join(sorted(rules))}",
                "speculation.verification",
            )


@dataclass(frozen=True)
class GenerationRequest:
    """One output to generate.

    Attributes:
        request_id: the ingress's name for it; unique among running requests.
        prompt_ids: at least one token.
        sampling, stop: see there.
        emitted_ids: output tokens that were already delivered, when a request is submitted again
            after a failure; limits, usage and stop strings go on from them.
        num_logprobs: None for none; k for each output token's log-probability and the top k.
        prompt_logprobs: the same for the prompt's tokens from the second on.
        priority: lower ones run first; among equals, those that came first.
        grammar: what the output must follow, as source text; empty for anything.
        grammar_param: the field in which the caller asked for it, for errors.
        return_trees: its events are to carry the trees of its steps.
        internal: kept out of public metrics (readiness probes).
        traceparent: the span that it is part of, as W3C Trace Context writes it; empty if its trace
            is not kept.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopConditions
    emitted_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""
    grammar_param: str = "grammar"
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)
    priority: int = 0
    return_trees: bool = False
    internal: bool = False
    traceparent: str = ""


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability by the LLM's raw logits, and the most probable tokens there."""

    token_id: int
    logprob: float
    top: TopLogprobs = NO_TOP


@dataclass
class SpeculationStats:
    """How one request's tokens came about.

    Attributes:
        num_llm_steps: LLM steps that carried the request after its prefill, drafted or not.
        num_spec_steps: those of them that carried draft nodes.
        num_draft_tokens: draft nodes verified.
        num_accepted_draft_tokens: draft nodes accepted and committed.
        acceptance_histogram: entry k counts the drafted steps that committed k draft tokens.
        draft_s, step_s, forward_s: seconds of those steps that passed waiting for drafts, waiting
            for the LLM, and in its forward pass (a part of `step_s`); shared with whoever else was
            in them.
        num_cached_tokens: prompt tokens whose KV was there already when the request first ran.
    """

    num_llm_steps: int = 0
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    step_s: float = 0.0
    forward_s: float = 0.0
    num_cached_tokens: int = 0

    def record(
        self, num_drafts: int, num_accepted: int, draft_s: float, step_s: float, forward_s: float
    ) -> None:
        """Count one LLM step with `num_drafts` draft nodes."""
        self.num_llm_steps += 1
        self.draft_s += draft_s
        self.step_s += step_s
        self.forward_s += forward_s
        if num_drafts == 0:
            return
        self.num_spec_steps += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_draft_tokens += num_accepted
        histogram = self.acceptance_histogram
        histogram.extend([0] * (num_accepted + 1 - len(histogram)))
        histogram[num_accepted] += 1


@dataclass(frozen=True)
class GenerationEvent:
    """Progress of a request; tokens since the event before.

    Attributes:
        token_ids: newly committed output tokens, a stop token included.
        visible_bytes: bytes of the whole output text, from its first token on, that may be shown
            by now; lags behind while the text could still turn out to be a stop string.
        logprobs: one per token of `token_ids`, if asked for.
        prompt_logprobs: in the first event, if asked for: one per prompt token from the second on.
        finish_reason: set in the last event.
        stats: in the last event.
        trees: of the steps that brought this, if asked for; of many, the latest.
    """

    token_ids: tuple[int, ...] = ()
    visible_bytes: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stats: SpeculationStats | None = None
    trees: tuple[StepTree, ...] = ()

    def merged(self, later: GenerationEvent) -> GenerationEvent:
        """This event and a later one of the same request as a single one."""
        return GenerationEvent(
            self.token_ids + later.token_ids,
            later.visible_bytes,
            self.logprobs + later.logprobs,
            self.prompt_logprobs + later.prompt_logprobs,
            later.finish_reason,
            later.stats,
            joined(self.trees, later.trees),
        )
