"""The bodies of answers and stream chunks, in the OpenAI API's two shapes.

Plain dictionaries, built once and serialised once: nothing on the way of a token validates.
Beyond OpenAI's fields: `bytes` beside log-probabilities of completions, `token_ids` and
`prompt_token_ids` if asked for, and `metrics.speculative_decoding`, whose acceptance figures have
the names, the place and the meaning that they have in vLLM, where benchmark clients look for them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from actors.request_manager.generation import SpeculationStats
from actors.vocabulary import Vocabulary
from deploy.choices import Piece, ScoredToken
from deploy.detokenize import token_text
from deploy.requests import Choice
from deploy.tree_chunks import tree_json

LOWEST_LOGPROB = -9999.0
"""What OpenAI shows for a probability of zero; JSON has no infinity."""

Json = dict[str, Any]

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def to_json(value: object) -> bytes:
    """ASCII only: no client may take a Unicode line separator in a text for the end of a line."""
    return _ENCODER.encode(value).encode("ascii")


class ResponseFormat(ABC):
    """One endpoint's way to put a piece of a choice."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, vocabulary: Vocabulary, *, with_token_ids: bool) -> None:
        self._vocabulary = vocabulary
        self._with_token_ids = with_token_ids

    @abstractmethod
    def whole(self, choice: Choice, piece: Piece) -> Json:
        """A finished choice."""

    @abstractmethod
    def opening(self, choice: Choice) -> Json | None:
        """What a choice's stream begins with, before any text."""

    @abstractmethod
    def chunk(self, choice: Choice, piece: Piece, *, first: bool) -> Json:
        """One piece of a choice's stream; `first` if it is the first to show anything."""

    def _token_ids(self, piece: Piece) -> Json:
        return {"token_ids": piece.token_ids} if self._with_token_ids else {}

    def _trees(self, piece: Piece) -> Json:
        if not piece.trees:
            return {}
        return {"trees": [tree_json(self._vocabulary, tree) for tree in piece.trees]}

    def _prompt_ids(self, choice: Choice, *, first: bool = True) -> Json:
        if not (self._with_token_ids and first):
            return {}
        return {"prompt_token_ids": choice.prompt.token_ids}


class CompletionFormat(ResponseFormat):
    """`/v1/completions`."""

    id_prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def whole(self, choice: Choice, piece: Piece) -> Json:
        return self.chunk(choice, piece, first=True)

    def opening(self, choice: Choice) -> Json | None:
        return None

    def chunk(self, choice: Choice, piece: Piece, *, first: bool) -> Json:
        wanted = choice.shows_logprobs
        return {
            "index": choice.index,
            "text": piece.text,
            "logprobs": completion_logprobs(self._vocabulary, piece.scored) if wanted else None,
            "finish_reason": piece.finish_reason,
            **self._token_ids(piece),
            **self._trees(piece),
            **self._prompt_ids(choice, first=first),
        }


class ChatFormat(ResponseFormat):
    """`/v1/chat/completions`."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def whole(self, choice: Choice, piece: Piece) -> Json:
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {
            "index": choice.index,
            "message": message,
            **self._ending(choice, piece),
            **self._prompt_ids(choice),
        }

    def opening(self, choice: Choice) -> Json | None:
        return {
            "index": choice.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
            **self._prompt_ids(choice),
        }

    def chunk(self, choice: Choice, piece: Piece, *, first: bool) -> Json:
        delta = {"content": piece.text} if piece.text else {}
        return {"index": choice.index, "delta": delta, **self._ending(choice, piece)}

    def _ending(self, choice: Choice, piece: Piece) -> Json:
        wanted = choice.shows_logprobs
        return {
            "logprobs": chat_logprobs(self._vocabulary, piece.scored) if wanted else None,
            "finish_reason": piece.finish_reason,
            **self._token_ids(piece),
            **self._trees(piece),
        }


def completion_logprobs(vocabulary: Vocabulary, scored: Sequence[ScoredToken]) -> Json:
    """Log-probabilities as parallel lists; the chosen token is always among the top ones."""
    return {
        "tokens": [token_text(vocabulary, entry.token_id) for entry in scored],
        "token_logprobs": [_shown(entry.logprob) for entry in scored],
        "top_logprobs": [_top_by_text(vocabulary, entry) for entry in scored],
        "text_offset": [entry.offset for entry in scored],
        "bytes": [_byte_list(vocabulary, entry.token_id) for entry in scored],
    }


def chat_logprobs(vocabulary: Vocabulary, scored: Sequence[ScoredToken]) -> Json:
    """Log-probabilities as one object per token."""

    def shown(token_id: int, logprob: float | None) -> Json:
        return {
            "token": token_text(vocabulary, token_id),
            "logprob": _shown(logprob),
            "bytes": _byte_list(vocabulary, token_id),
        }

    content = [
        {
            **shown(entry.token_id, entry.logprob),
            "top_logprobs": [
                shown(*pair) for pair in zip(entry.top.token_ids, entry.top.logprobs, strict=True)
            ],
        }
        for entry in scored
    ]
    return {"content": content, "refusal": None}


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Json:
    """Of the prompt tokens `cached_tokens` did not have to be computed."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def speculation_metrics(stats: SpeculationStats) -> Json:
    """How the answer's tokens came about.

    `mean_acceptance_length` counts committed tokens per drafted step, the bonus included; without
    any drafted step it is 1 and the rate 0, as in vLLM. For the seconds see
    `SpeculationStats`.
    """
    steps, drafts = stats.num_spec_steps, stats.num_draft_tokens
    accepted = stats.num_accepted_draft_tokens
    return {
        "speculative_decoding": {
            "num_llm_steps": stats.num_llm_steps,
            "num_spec_steps": steps,
            "num_draft_tokens": drafts,
            "num_accepted_draft_tokens": accepted,
            "mean_acceptance_length": 1.0 + (accepted / steps if steps else 0.0),
            "draft_acceptance_rate": accepted / drafts if drafts else 0.0,
            "acceptance_histogram": stats.acceptance_histogram,
            "draft_s": stats.draft_s,
            "step_s": stats.step_s,
            "forward_s": stats.forward_s,
        }
    }


def _top_by_text(vocabulary: Vocabulary, entry: ScoredToken) -> dict[str, float | None] | None:
    if entry.logprob is None:
        return None
    top: dict[str, float | None] = {}
    for token_id, logprob in zip(entry.top.token_ids, entry.top.logprobs, strict=True):
        top.setdefault(token_text(vocabulary, token_id), _shown(logprob))
    top.setdefault(token_text(vocabulary, entry.token_id), _shown(entry.logprob))
    return top


def _shown(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST_LOGPROB)


def _byte_list(vocabulary: Vocabulary, token_id: int) -> list[int] | None:
    """None for a token that adds no text."""
    return list(vocabulary.text_bytes((token_id,))) or None
