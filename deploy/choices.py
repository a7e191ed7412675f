"""One choice of an answer while it grows: events in, pieces that may be shown out.

Tokens and log-probabilities wait until there is text to show with them, so that a stream has no
pieces without text but the last. A whole answer is its pieces joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.messages import TopLogprobs
from actors.request_manager.generation import (
    NO_TOP,
    FinishReason,
    GenerationEvent,
    SpeculationStats,
    TokenLogprob,
)
from actors.request_manager.step_tree import StepTree, joined
from actors.vocabulary import Vocabulary
from deploy.detokenize import Detokenizer, IncrementalDecoder, prompt_text, tail_bytes
from deploy.requests import Choice


@dataclass(frozen=True)
class ScoredToken:
    """A token with its log-probability.

    Attributes:
        logprob: None for the first token of a prompt, which nothing predicts.
        offset: characters of the choice's text before the token.
    """

    token_id: int
    logprob: float | None
    top: TopLogprobs
    offset: int


@dataclass
class Piece:
    """What a choice shows at once."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)
    trees: tuple[StepTree, ...] = ()
    finish_reason: FinishReason | None = None

    def join(self, later: Piece) -> None:
        """Make this the piece that shows both."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.scored += later.scored
        self.trees = joined(self.trees, later.trees)
        self.finish_reason = later.finish_reason


class GrowingChoice:
    """Turns the events of one generation into pieces."""

    def __init__(self, choice: Choice, vocabulary: Vocabulary, *, echo: bool) -> None:
        self.choice = choice
        self.num_tokens = 0
        self.sum_logprobs = 0.0
        self.stats = SpeculationStats()
        self._vocabulary = vocabulary
        self._echo = echo
        prompt_ids = choice.prompt.token_ids
        self._detokenizer = Detokenizer(vocabulary, prompt_ids, show_replaced=echo)
        self._waiting = Piece(text=self._echoed_text() if echo else "")
        self._offset = 0
        before = b"" if echo else tail_bytes(vocabulary, prompt_ids)
        self._offset_decoder = IncrementalDecoder(before)
        self._prompt_scored = not (echo and choice.request.prompt_logprobs is not None)

    def feed(self, event: GenerationEvent) -> Piece | None:
        """The piece that this event lets out, if any."""
        waiting = self._waiting
        if not self._prompt_scored:
            self._prompt_scored = True
            self._score_prompt(event.prompt_logprobs)
        waiting.text += self._detokenizer.feed(event)
        waiting.token_ids += event.token_ids
        for entry in event.logprobs:
            self.sum_logprobs += entry.logprob
            waiting.scored.append(self._scored(entry.token_id, entry.logprob, entry.top))
        if event.trees:
            waiting.trees = joined(waiting.trees, event.trees)
        self.num_tokens += len(event.token_ids)
        if event.stats is not None:
            self.stats = event.stats
        if event.finish_reason is None and not waiting.text:
            return None
        waiting.finish_reason = event.finish_reason
        self._waiting = Piece()
        return waiting

    @property
    def mean_logprob(self) -> float:
        """Log-probability per token; of an output without tokens 0, the best there is."""
        return self.sum_logprobs / max(self.num_tokens, 1)

    def _echoed_text(self) -> str:
        prompt = self.choice.prompt
        if prompt.text is not None:
            return prompt.text
        return prompt_text(self._vocabulary, prompt.token_ids)

    def _score_prompt(self, entries: Sequence[TokenLogprob]) -> None:
        first = self.choice.prompt.token_ids[0]
        scored = self._waiting.scored
        scored.append(self._scored(first, None, NO_TOP))
        scored.extend(self._scored(entry.token_id, entry.logprob, entry.top) for entry in entries)

    def _scored(self, token_id: int, logprob: float | None, top: TopLogprobs) -> ScoredToken:
        offset = self._offset
        self._offset += len(self._offset_decoder.decode(self._vocabulary.text_bytes((token_id,))))
        return ScoredToken(token_id, logprob, top, offset)


def cached_tokens(choices: Sequence[GrowingChoice]) -> int:
    """Prompt tokens that were computed before; each prompt counts once, as in the usage.

    The first of several choices computes what the prompt lacks, and the others find it.
    """
    by_prompt: dict[int, int] = {}
    for growing in choices:
        found, prompt = growing.stats.num_cached_tokens, id(growing.choice.prompt)
        by_prompt[prompt] = min(found, by_prompt.get(prompt, found))
    return sum(by_prompt.values())


def total_stats(all_stats: Sequence[SpeculationStats]) -> SpeculationStats:
    """The sums over several choices."""
    total = SpeculationStats()
    for stats in all_stats:
        total.num_llm_steps += stats.num_llm_steps
        total.num_spec_steps += stats.num_spec_steps
        total.num_draft_tokens += stats.num_draft_tokens
        total.num_accepted_draft_tokens += stats.num_accepted_draft_tokens
        total.draft_s += stats.draft_s
        total.step_s += stats.step_s
        total.forward_s += stats.forward_s
        missing = len(stats.acceptance_histogram) - len(total.acceptance_histogram)
        total.acceptance_histogram.extend([0] * missing)
        for accepted, count in enumerate(stats.acceptance_histogram):
            total.acceptance_histogram[accepted] += count
    return total
