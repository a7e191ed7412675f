"""Which tokens may be drawn at a node: top-k → top-p → min-p, the same for the LLM and for drafts.

Works on one node's logits at a time, so that a result does not depend on what else is computed
beside it. No step sorts the vocabulary unless a nucleus really spans it. The draw itself, and what
comes before the temperature, is the caller's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from actors.sampling import SamplingParams

Logits = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]
_NUCLEUS_REACH = (3.0, 6.0, 9.0, 12.0, np.inf)
"""How far below the best scaled logit to look for a nucleus, in nats; the first that holds it is
sorted."""


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
