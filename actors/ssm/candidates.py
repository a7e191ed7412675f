"""From a draft model's logits to the children of tree nodes, with scores.

The logit steps are the LLM's: bias → penalties → `min_tokens` ban → temperature → top-k → top-p →
min-p, here over the words of the cut. Greedy children are the top k by logit. With sampling they
are the top k of l + T * G under the noise that the LLM will draw with (Gumbel-top-k: Kool et al.
2019): sampled without replacement and correlated with the LLM's own draw.

A child's score is the softmax of these perturbed logits at its place: given the noise, acceptance
follows the perturbed score and not the draft distribution. At T = 0 it is the draft's probability.

That is for `coupled` verification. Rules that weigh drafts against their distribution have them
drawn from it by a noise of their own (`draft_draws`); for other rules the best by probability are
as good as any. The score is then the draft's probability.
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
from actors.ssm.draft_draws import DraftDrawer
from actors.verification import Draws, Rule

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Family:
    """The children of a node.

    Attributes:
        children: (token id, score), best first.
        draws: what was drawn, if the rule weighs that.
    """

    children: Sequence[tuple[int, float]]
    draws: Draws | None = None


@dataclass(frozen=True)
class DrawRules:
    """How a session's tokens are drawn.

    Attributes:
        sampling: as for the LLM.
        prompt_len: tokens before the output.
        banned_early: token ids that cannot be drawn before `sampling.min_tokens` output tokens.
        occurrences: in the session's text, if `sampling` penalises.
        verification: the rule by which the drafts will be verified.
    """

    sampling: SamplingParams
    prompt_len: int = 0
    banned_early: tuple[int, ...] = ()
    occurrences: Occurrences | None = None
    verification: Rule = Rule.COUPLED

    @property
    def shares_noise(self) -> bool:
        """True if drafts are found by the noise that the LLM draws with."""
        return self.verification is Rule.COUPLED

    @property
    def weighs_draws(self) -> bool:
        """True if drafts have to be drawn, and will be weighed against what from."""
        return self.verification.weighs_draws and not self.sampling.is_greedy

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
        model: the draft model's place among several.
    """

    def __init__(
        self, cut_ids: Tensor, vocab_size: int, noise: NoiseSource, model: int = 0
    ) -> None:
        self._cut_ids = cut_ids.numpy()
        self._vocab_size = vocab_size
        self._noise = noise
        self._drawer = DraftDrawer(self._cut_ids, noise, model)

    def families(self, parents: Sequence[Parent], logits: Tensor) -> list[Family]:
        """The children of each parent.

        Args:
            logits: [parents, cut] float32; overwritten.
        """
        rows = logits.numpy()
        for parent, row in zip(parents, rows, strict=True):
            self._adjust(parent, row)
        weighed = [parent.rules.weighs_draws for parent in parents]
        if not any(weighed):
            return self._best(parents, rows)
        plain = iter(
            self._best(
                [parent for parent, draws in zip(parents, weighed, strict=True) if not draws],
                rows[np.logical_not(weighed)],
            )
        )
        return [
            self._drawn(parent, row) if draws else next(plain)
            for parent, row, draws in zip(parents, rows, weighed, strict=True)
        ]

    def _best(self, parents: Sequence[Parent], rows: Floats) -> list[Family]:
        """Families of the best by perturbed logit; overwrites `rows`."""
        if not parents:
            return []
        count = min(max(parent.num_children for parent in parents), rows.shape[1])
        places, scores = best_of_rows(rows, [self._perturbation(one) for one in parents], count)
        token_ids = self._cut_ids[places]
        counts = [parent.num_children for parent in parents]
        return [
            Family([one for one in zip(ids, values, strict=True) if one[1] > 0.0][:count])
            for count, ids, values in zip(counts, token_ids.tolist(), scores.tolist(), strict=True)
        ]

    def _drawn(self, parent: Parent, logits: Floats) -> Family:
        """What is drawn below a parent, and the tokens of it by probability."""
        rules = parent.rules
        draws = self._drawer.draw(
            rules.verification, logits, rules.sampling, parent.position, parent.num_children
        )
        if draws is None:
            return Family([])
        children = {
            token: float(draws.probabilities[draws.places[token]]) for token in draws.token_ids
        }
        return Family(sorted(children.items(), key=lambda child: -child[1]), draws)

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
        if not (sampling.is_greedy or parent.rules.shares_noise or parent.rules.weighs_draws):
            logits /= np.float32(sampling.temperature)  # the score is the probability

    def _perturbation(self, parent: Parent) -> Perturbation | None:
        sampling = parent.rules.sampling
        if sampling.is_greedy or not parent.rules.shares_noise:
            return None
        noise = self._noise.get(sampling.seed, parent.position)
        return Perturbation(noise, sampling.temperature)
