"""What a model makes of a text: how likely each token is, and what it would have said itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actors.decoder.kv_cache import KVCache
from actors.llm.batch import build_batch
from actors.llm.block_tables import RequestKV
from actors.llm.loading import LoadedModel
from actors.messages import NewRequest, Row
from actors.sampling import SamplingParams
from actors.tree import TokenTree


@dataclass(frozen=True)
class Score:
    """Of the tokens of a text.

    Attributes:
        logprobs: natural, of each token after those before it.
        best: what the model would have said there.
    """

    logprobs: Sequence[float]
    best: Sequence[int]

    @classmethod
    def joined(cls, scores: Sequence[Score]) -> Score:
        return cls(
            [logprob for one in scores for logprob in one.logprobs],
            [token for one in scores for token in one.best],
        )

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.logprobs) / len(self.logprobs))


def score(loaded: LoadedModel, token_ids: Sequence[int], start: int) -> Score:
    """The tokens from `start` on, which is at least 1, in one pass."""
    model, num_tokens = loaded.model, len(token_ids)
    cache = KVCache(model.kv_shape, 1, num_tokens, loaded.dtype, loaded.device)
    row = Row(0, 0, TokenTree.chain(token_ids), first_output=start - 1)
    held = RequestKV(NewRequest(0, 1, SamplingParams()), np.arange(num_tokens))
    batch = build_batch((row,), {0: held}, cache.scratch_slot, loaded.device)
    logits = model.forward(batch, cache)[:-1]
    own = logits.log_softmax(-1).cpu()[range(len(logits)), list(token_ids[start:])]
    return Score(own.tolist(), logits.argmax(-1).tolist())
