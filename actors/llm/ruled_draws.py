"""The LLM's token at a node under a verification rule that has drafts tried before it is drawn.

Coins and the draw from the rest take noise of their own, by position, as the drafts did; a node
below which nothing is tried is drawn plainly.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from actors.llm.rules.k_sequential import KSequential
from actors.llm.rules.multi_step import MultiStep
from actors.llm.rules.plan import Below, Plan, Planner
from actors.llm.rules.typical import Typical
from actors.logit_steps import Logits
from actors.noise import NoiseSource, Stream, uniforms
from actors.sampling import SamplingParams
from actors.verification import Probabilities, Rule, normalized

PLANNERS: Mapping[Rule, Planner] = MappingProxyType(
    {Rule.MSS: MultiStep(), Rule.SPECTR: KSequential(), Rule.TYPICAL: Typical()}
)


def ruled_draw(
    rule: Rule,
    below: Below,
    logits: Logits,
    sampling: SamplingParams,
    position: int,
    noise: NoiseSource,
) -> int | None:
    """The token at a node, or None if no draft there is tried.

    Args:
        rule: one of `PLANNERS`.
        logits: [vocab] after every step before the temperature; -inf where truncation cuts off.
        position: 0-based index, in prompt + output, of the token being drawn.
    """
    if not below.children and not below.draws:
        return None
    plan = PLANNERS[rule].plan(distribution(logits, sampling.temperature), below)
    if not plan.tries:
        return None
    coins = uniforms(sampling.seed, position, Stream.COIN, len(plan.tries))
    accepted = plan.accepted(coins.tolist())
    return _rest(plan, sampling.seed, position, noise) if accepted is None else accepted


def distribution(logits: Logits, temperature: float) -> Probabilities:
    """[vocab] the softmax at a temperature."""
    scaled = logits.astype(np.float64) / temperature
    return normalized(np.exp(scaled - scaled.max()))


def _rest(plan: Plan, seed: int, position: int, noise: NoiseSource) -> int:
    with np.errstate(divide="ignore"):
        scores = np.log(plan.rest)
    return int(np.argmax(scores + noise.get(seed, position, Stream.RESIDUAL)))
