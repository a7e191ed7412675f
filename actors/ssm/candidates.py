"""From a draft model's logits to the children of tree nodes, with scores.

The logit steps are the LLM's: bias → penalties → `min_tokens` ban → temperature → top-k → top-p →
min-p, here over the words of the cut. Greedy children are the top k by logit. With sampling they
are the top k of l + T * G under the noise that the LLM will draw with (Gumbel-top-k: Kool et al.
2019): sampled without replacement and correlated with the LLM's own draw.

A child's score is the softmax of these perturbed logits at its place: given the noise, acceptance
follows the perturbed score and not the draft distribution. At T = 0 it is the draft's probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from actors.decoder.native.draws import Perturbation, best_of_rows
from actors.logit_steps import Occurrences, adjusted, kept_ids
from actors.noise import NoiseSource
from actors.sampling import SamplingParams

Floats = npt.NDArray[np.float32]
Family = list[tuple[int, float]]
"""(token id, score) of a node's children, best first."""


@dataclass(frozen=True)
class DrawRules:
    """How a session's tokens are drawn.

    Attributes:
        sampling: as for the LLM.
        prompt_len: tokens before the output.
        banned_early: token ids that cannot be drawn before `sampling.min_tokens` output tokens.
        occurrences: in the session's text, if `sampling` penalises.
    """

    sampling: SamplingParams
    prompt_len: int = 0
    banned_early: tuple[int, ...] = ()
    occurrences: Occurrences | None = None

    def banned(self, position: int) -> tuple[int, ...]:
        """Token ids that cannot be drawn at a position yet."""
        early = position - self.prompt_len < self.sampling.min_tokens
        return self.banned_early if early else ()


@dataclass(frozen=True)
class Parent:
    """A node that is to have children.

    Attributes:
        rules: of its session.
        position: 0-based index, in prompt + output, of its children's tokens.
        num_children: how many it should have.
        path: the draft tokens that end with the node's own; empty for the root.
    """

    rules: DrawRules
    position: int
    num_children: int
    path: Sequence[int] = ()

    def adjusted(self, logits: Floats) -> Floats:
        """[vocab_size] logits after every step before the temperature."""
        rules, banned = self.rules, self.rules.banned(self.position)
        if rules.occurrences is None:
            return adjusted(logits, rules.sampling, None, banned)
        start = self.position - len(self.path)
        with rules.occurrences.and_then(start, self.path, rules.prompt_len) as occurrences:
            return adjusted(logits, rules.sampling, occurrences, banned)


class CandidateRanker:
    """Finds children; keeps the noise of recent positions.

    Args:
        cut_ids: [cut] the LLM's token id of each logit, ascending.
        vocab_size: the LLM's.
        noise: of the words of the cut.
    """

    def __init__(self, cut_ids: Tensor, vocab_size: int, noise: NoiseSource) -> None:
        self._cut_ids = cut_ids.numpy()
        self._vocab_size = vocab_size
        self._noise = noise

    def children(self, parents: Sequence[Parent], logits: Tensor) -> list[Family]:
        """The children of each parent, best first.

        Args:
            logits: [parents, cut] float32; overwritten.
        """
        rows = logits.numpy()
        for parent, row in zip(parents, rows, strict=True):
            self._adjust(parent, row)
        count = min(max(parent.num_children for parent in parents), rows.shape[1])
        places, scores = best_of_rows(rows, [self._perturbation(one) for one in parents], count)
        token_ids = self._cut_ids[places]
        return [
            [(token, score) for token, score in zip(ids, values, strict=True) if score > 0.0][
                : parent.num_children
            ]
            for parent, ids, values in zip(
                parents, token_ids.tolist(), scores.tolist(), strict=True
            )
        ]

    def _adjust(self, parent: Parent, logits: Floats) -> None:
        """All logit steps for one node, in place; what they cut off becomes -inf."""
        sampling = parent.rules.sampling
        if sampling.logit_bias or sampling.penalizes or parent.rules.banned(parent.position):
            whole = np.full(self._vocab_size, -np.inf, dtype=np.float32)
            whole[self._cut_ids] = logits
            logits[:] = parent.adjusted(whole)[self._cut_ids]
        if not sampling.is_greedy and sampling.truncates:
            cut_off = np.ones(len(logits), np.bool_)
            cut_off[kept_ids(logits, sampling)] = False
            logits[cut_off] = -np.inf

    def _perturbation(self, parent: Parent) -> Perturbation | None:
        sampling = parent.rules.sampling
        if sampling.is_greedy:
            return None
        noise = self._noise.get(sampling.seed, parent.position)
        return Perturbation(noise, sampling.temperature)
