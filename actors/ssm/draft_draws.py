"""Draws from a draft model's distribution, for rules that weigh drafts against it.

The distribution is the softmax at the request's temperature of what the logit steps leave, on its
`MAX_SUPPORT` most probable tokens; its weights are rounded to float32 before anything is drawn, so
that what is sent is what was drawn from. The noise is independent of the LLM's, and of what other
draft models draw under: rules try the drafts of all of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from actors.noise import NoiseSource, draft_stream, uniforms
from actors.sampling import SamplingParams
from actors.verification import MAX_SUPPORT, Draws, Rule, normalized

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class DraftDrawer:
    """Draws from the words of a cut.

    Args:
        cut_ids: [cut] the LLM's token id of each logit.
        noise: of these words.
        model: the draft model's place among several.
    """

    def __init__(self, cut_ids: Ids, noise: NoiseSource, model: int = 0) -> None:
        self._cut_ids = cut_ids
        self._noise = noise
        self._stream = draft_stream(model)

    def draw(
        self, rule: Rule, logits: Floats, sampling: SamplingParams, position: int, count: int
    ) -> Draws | None:
        """What is drawn below one node; fewer than `count` where there are not so many tokens.

        None where there is no distribution to draw from.

        Args:
            rule: `mss` draws without replacement, any other with it.
            logits: [cut] after every logit step; -inf where one cut off.
            position: 0-based index, in prompt + output, of the tokens being drawn.
        """
        places, weights = support(logits, sampling.temperature)
        if not len(places):
            return None
        if rule is Rule.MSS:
            noise = self._noise.get(sampling.seed, position, self._stream)[places]
            drawn = without_replacement(weights, noise, count)
        else:
            chances = uniforms(sampling.seed, position, self._stream, count)
            drawn = with_replacement(weights, chances)
        ids = self._cut_ids[places]
        return Draws(tuple(ids[drawn].tolist()), tuple(ids.tolist()), tuple(weights.tolist()))


def support(logits: Floats, temperature: float) -> tuple[Ids, Floats]:
    """The places of the most probable tokens, ascending, and their weights, above 0."""
    places = np.arange(len(logits))
    if len(logits) > MAX_SUPPORT:
        places = np.sort(np.argpartition(-logits, MAX_SUPPORT)[:MAX_SUPPORT])
    scaled = logits[places].astype(np.float64) / temperature
    best = scaled.max()
    if not np.isfinite(best):
        return places[:0], logits[:0]
    weights = np.exp(scaled - best).astype(np.float32)
    return places[weights > 0.0], weights[weights > 0.0]


def without_replacement(weights: Floats, gumbel: Floats, count: int) -> Ids:
    """The places that are drawn, in order: the top of log w + G (Kool et al. 2019)."""
    scores = np.log(weights.astype(np.float64)) + gumbel
    return np.argsort(-scores, kind="stable")[:count]


def with_replacement(weights: Floats, chances: npt.NDArray[np.float64]) -> Ids:
    """The place that each of the uniform variates draws."""
    reached = np.cumsum(normalized(weights.astype(np.float64)))
    return np.minimum(np.searchsorted(reached, chances, side="right"), len(weights) - 1)
