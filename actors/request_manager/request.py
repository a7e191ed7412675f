"""A request inside the manager: its tokens and its state."""

from __future__ import annotations

from enum import Enum

from actors.request_manager.commit import OutputRules, OutputState
from actors.request_manager.generation import (
    GenerationRequest,
    SpeculationStats,
    TokenLogprob,
)
from actors.request_manager.outbox import Sink
from actors.verification import Rule


class State(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    CLOSING = "closing"
    FINISHED = "finished"


LEGAL_MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILL, State.FINISHED}),
    State.PREFILL: frozenset({State.DECODE, State.PREEMPTED, State.CLOSING, State.FINISHED}),
    State.DECODE: frozenset({State.PREEMPTED, State.CLOSING, State.FINISHED}),
    State.PREEMPTED: frozenset({State.WAITING}),
    State.CLOSING: frozenset({State.FINISHED}),
    State.FINISHED: frozenset(),
}
"""CLOSING is "cancelled while a step is in flight": blocks are kept until its result is back."""


class Request:
    """One running request.

    Attributes:
        request_id: the manager's number for it; counts up, so it tells who came first.
        tokens: prompt and output so far; the last one is the root of the next step.
        rules, output: when the output ends, and how far it is.
        sink: where its events go.
        verification: the rule by which its drafts are verified.
        prompt_logprobs: of the prompt tokens scored so far, if they are wanted.
        block_keys: of its first full KV blocks, as far as they were needed (`prefix_reuse`).
        known_to_ranks: the ranks have had its `NewRequest` in this epoch.
        in_flight: planned for a step that is not over.
        in_step: the ranks have been sent a step with it whose reply is not there.
        num_failures: steps lost while they carried it, since it last got on.
    """

    def __init__(
        self,
        request_id: int,
        asked: GenerationRequest,
        rules: OutputRules,
        sink: Sink,
        arrival_s: float,
        verification: Rule = Rule.COUPLED,
    ) -> None:
        self.request_id = request_id
        self.asked = asked
        self.rules = rules
        self.output = OutputState()
        self.arrival_s = arrival_s
        self.tokens: list[int] = [*asked.prompt_ids, *asked.emitted_ids]
        self.verification = verification
        self.prompt_len = len(asked.prompt_ids)
        self.prompt_logprobs: list[TokenLogprob] = []
        self.state = State.WAITING
        self.sink = sink
        self.stats = SpeculationStats()
        self.group = 0
        self.first_token_s: float | None = None
        self.known_to_ranks = False
        self.in_flight = False
        self.in_step = False
        self.num_failures = 0
        self.block_keys: list[bytes] = []
        self._has_begun = False
        self._prompt_is_scored = asked.prompt_logprobs is None

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def max_total_tokens(self) -> int:
        """Tokens at the end of the longest output that it can have."""
        return self.prompt_len + self.rules.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        """True if the ranks were asked for log-probabilities at all."""
        asked = self.asked
        return asked.num_logprobs is not None or asked.prompt_logprobs is not None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True until the prompt's log-probabilities have been delivered."""
        return not self._prompt_is_scored

    @property
    def shows_drafts(self) -> bool:
        """Whether its sender may read drafts: as they are, or as tokens that a lossy rule took."""
        return self.asked.return_trees or self.verification is Rule.TYPICAL

    @property
    def banned_early(self) -> tuple[int, ...]:
        """Token ids that cannot be drawn before `min_tokens` output tokens: whatever ends it."""
        return tuple(sorted(self.rules.end_ids)) if self.rules.min_tokens else ()

    def take_prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """The prompt's log-probabilities, once."""
        self._prompt_is_scored = True
        scored, self.prompt_logprobs = tuple(self.prompt_logprobs), []
        return scored

    def transition(self, state: State) -> None:
        """Move to another state.

        Raises:
            AssertionError: if the move is not in `LEGAL_MOVES`.
        """
        if state not in LEGAL_MOVES[self.state]:
            raise AssertionError(f"request {self.request_id}: {self.state.name} → {state.name}")
        self.state = state

    def begin(self, num_reused_tokens: int) -> None:
        """Start a prefill after so many tokens whose KV is there already."""
        self.transition(State.PREFILL)
        if not self._has_begun:
            self.stats.num_cached_tokens = min(num_reused_tokens, self.prompt_len)
            self._has_begun = True

    def preempt(self) -> None:
        """Give up the KV; the request will be prefilled again from its tokens."""
        self.transition(State.PREEMPTED)
        self.transition(State.WAITING)
        self.prompt_logprobs.clear()
        self.known_to_ranks = False
        self.in_flight = False
