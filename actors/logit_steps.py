"""The logit steps of one node, the same for the LLM and for drafts.

Before the temperature (`adjusted`): bias → repetition, frequency, presence penalty → bans →
grammar. After it (`kept_ids`): top-k → top-p → min-p. Works on one node's logits at a time, so that
a result does not depend on what else is computed beside it. No step sorts the vocabulary unless a
nucleus really spans it. The draw itself is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from actors.sampling import SamplingParams

Logits = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
_NUCLEUS_REACH = (3.0, 6.0, 9.0, 12.0, np.inf)
"""How far below the best scaled logit to look for a nucleus, in nats; the first that holds it is
sorted."""


@dataclass(frozen=True)
class Occurrences:
    """How often each token stands in the text before a node; both [vocab_size], and counted on.

    Attributes:
        in_text: in prompt and output.
        in_output: in the output alone.
    """

    in_text: Counts
    in_output: Counts

    @classmethod
    def none(cls, vocab_size: int) -> Occurrences:
        return cls(np.zeros(vocab_size, dtype=np.int32), np.zeros(vocab_size, dtype=np.int32))

    def add(self, start: int, token_ids: Sequence[int], prompt_len: int, times: int = 1) -> None:
        """Count the tokens that stand at `start` and after it; -1 times takes them off again."""
        ids = np.asarray(token_ids, dtype=np.int64)
        np.add.at(self.in_text, ids, times)
        np.add.at(self.in_output, ids[max(prompt_len - start, 0) :], times)

    @contextmanager
    def and_then(self, start: int, path: Sequence[int], prompt_len: int) -> Iterator[Occurrences]:
        """With the tokens of a tree's path, which stand at `start` and after it, counted too."""
        self.add(start, path, prompt_len)
        try:
            yield self
        finally:
            self.add(start, path, prompt_len, -1)


def adjusted(
    logits: Logits,
    sampling: SamplingParams,
    occurrences: Occurrences | None = None,
    banned: Sequence[int] = (),
    mask: Mask | None = None,
) -> Logits:
    """The logits after bias, penalties, bans and mask; `logits` itself if nothing applies.

    The penalties are those of vLLM: repetition looks at prompt and output, the others at the
    output alone.

    Args:
        logits: [vocab_size].
        occurrences: needed if `sampling` penalises.
        banned: token ids that cannot be drawn here.
        mask: [vocab_size] those that a grammar allows.
    """
    if not (sampling.logit_bias or sampling.penalizes or banned or mask is not None):
        return logits
    logits = logits.copy()
    ids, bias = sampling.bias_arrays
    logits[ids] += bias
    if occurrences is not None:
        _penalize(logits, sampling, occurrences)
    logits[list(banned)] = -np.inf
    if mask is not None:
        logits[~mask] = -np.inf
    return logits


def _penalize(logits: Logits, sampling: SamplingParams, occurrences: Occurrences) -> None:
    kind = logits.dtype.type
    if sampling.repetition_penalty != 1.0:
        penalty = kind(sampling.repetition_penalty)
        seen = np.flatnonzero(occurrences.in_text != 0)  # eight times as fast as on integers
        values = logits[seen]
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        seen = np.flatnonzero(occurrences.in_output != 0)
        counts = occurrences.in_output[seen].astype(logits.dtype)
        logits[seen] -= kind(sampling.frequency_penalty) * counts
        logits[seen] -= kind(sampling.presence_penalty)


def kept_ids(logits: Logits, sampling: SamplingParams) -> Ids:
    """Ids that top-k, top-p and min-p leave, ascending; as transformers' processors in sequence.

    Top-k keeps all tokens that tie for the last place; top-p keeps the smallest set of most
    probable tokens whose mass, among those left by top-k, reaches `top_p`, ties by id.
    """
    scaled = logits.astype(np.float64) / sampling.temperature
    kept = top_k_ids(logits, sampling.top_k)
    if sampling.top_p < 1.0:
        kept = _nucleus(scaled, kept, sampling.top_p)
    if sampling.min_p > 0.0:
        kept = kept[scaled[kept] >= scaled[kept].max() + np.log(sampling.min_p)]
    return kept


def top_k_ids(logits: Logits, count: int) -> Ids:
    """Ids of the `count` best finite logits and of what ties with the last; 0 is all. Ascending."""
    if not 0 < count < len(logits):
        return np.flatnonzero(logits > -np.inf)
    smallest = torch.topk(torch.from_numpy(logits), count).values[-1].item()
    return np.flatnonzero((logits >= smallest) & (logits > -np.inf))


def _nucleus(scaled: npt.NDArray[np.float64], kept: Ids, top_p: float) -> Ids:
    values = scaled[kept]
    best = values.max()
    weights = np.exp(values - best)
    wanted = top_p * weights.sum()
    for reach in _NUCLEUS_REACH:
        near = np.flatnonzero(values >= best - reach)
        if weights[near].sum() >= wanted:
            break
    ranked = near[np.argsort(-values[near], kind="stable")]
    mass = np.cumsum(weights[ranked])
    # A token stays while the mass before it has not reached the wanted one.
    size = 1 + int(np.searchsorted(mass[:-1], wanted))
    return np.sort(kept[ranked[:size]])
