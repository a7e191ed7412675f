"""Speed-up foretold from acceptance and costs, beside the one measured, and where they part."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cluster.bench.acceptance import TREE, acceptance_of
from cluster.bench.formulas import expected_tokens, expected_tokens_by_depth, speed_up
from cluster.bench.snapshots import Counts


@dataclass(frozen=True)
class Totals:
    """Sums over the answers of one mode to the prompts of one task.

    Attributes:
        decode_s: from the first chunk of each answer to the last, as the client saw it.
        num_decoded: tokens that came in that time.
        num_steps: LLM steps in that time.
        draft_s, step_s: the server's account of them: waiting for drafts, and for the LLM.
        counts: what the server's counters grew by.
    """

    decode_s: float
    num_decoded: int
    num_steps: int
    draft_s: float
    step_s: float
    counts: Counts

    @property
    def s_per_token(self) -> float:
        return self.decode_s / self.num_decoded

    @property
    def fixed_s(self) -> float:
        """Seconds of a step that went neither to drafts nor to the LLM."""
        return (self.decode_s - self.draft_s - self.step_s) / self.num_steps


@dataclass(frozen=True)
class Prediction:
    """Costs in plain LLM steps, and speed-up by three formulas.

    Attributes:
        alpha: drafts accepted of those offered, over all depths: the lecture's single rate.
        gamma: mean depth of the trees, steps without one counted as 0.
        c: drafting, per step.
        v: the LLM's step with its drafts.
        f: what a plain step takes beside the LLM.
        tokens_independent: a step's tokens, from `alpha` and `gamma`.
        tokens_by_depth: a step's tokens, from acceptance measured at each depth.
        by_alpha: (a) `tokens_independent` and c.
        by_depth: (b) `tokens_by_depth` and c.
        by_cost: (c) `tokens_by_depth`, c, v and f.
        measured: over plain decoding of the same prompts.
    """

    alpha: float
    gamma: float
    c: float
    v: float
    f: float
    tokens_independent: float
    tokens_by_depth: float
    by_alpha: float
    by_depth: float
    by_cost: float
    measured: float

    def report(self) -> dict[str, float]:
        """All figures, and each prediction over what was measured."""
        ratios = {
            f"{name}_to_measured": getattr(self, name) / self.measured
            for name in ("by_alpha", "by_depth", "by_cost")
        }
        return asdict(self) | ratios


def predict(plain: Totals, mode: Totals) -> Prediction | None:
    """From two modes' answers to the same prompts; None if no draft was verified."""
    tree = acceptance_of(mode.counts)[TREE]
    if tree.rate is None:
        return None
    plain_step_s = plain.step_s / plain.num_steps
    c = mode.draft_s / mode.num_steps / plain_step_s
    v = mode.step_s / mode.num_steps / plain_step_s
    f = plain.fixed_s / plain_step_s
    gamma = mode.counts.total("treeserve_tree_depth_sum") / mode.num_steps
    independent = expected_tokens(tree.rate, gamma)
    by_depth = expected_tokens_by_depth(tree.continued)
    return Prediction(
        alpha=tree.rate,
        gamma=gamma,
        c=c,
        v=v,
        f=f,
        tokens_independent=independent,
        tokens_by_depth=by_depth,
        by_alpha=speed_up(independent, c),
        by_depth=speed_up(by_depth, c),
        by_cost=speed_up(by_depth, c, v, f),
        measured=plain.s_per_token / mode.s_per_token,
    )


def finding(mode: str, prediction: Prediction) -> str:
    """Where the first formula and the measurement part, in factors that multiply up."""
    return (
        f"{mode}: (a) foretells {prediction.by_alpha:.2f}, measured {prediction.measured:.2f}, "
        f"a factor of {prediction.by_alpha / prediction.measured:.2f}: "
        f"{prediction.by_alpha / prediction.by_depth:.2f} from one rate for all depths, "
        f"{prediction.by_depth / prediction.by_cost:.2f} from a step as cheap as a plain one, "
        f"{prediction.by_cost / prediction.measured:.2f} from what is in no formula"
    )
