"""How often the noise of a position was at hand, out of the server's counters."""

from __future__ import annotations

from cluster.bench.prediction import Totals

NAME = "treeserve_noise_positions_total"


def noise_use(totals: Totals) -> dict[str, dict[str, float]]:
    """For each part that needed noise (`llm`, `ssm`): lookups and computed positions per step of
    the LLM, and the share of lookups that hit. Empty in greedy decoding, which needs none.

    The LLM looks a position up for every node of a tree, so siblings and their like hit; the steps
    of prefills, which draw once, are counted too.
    """
    use = {}
    for part in totals.counts.labels(NAME, "part"):
        hits = totals.counts.total(NAME, part=part, cache="hit")
        misses = totals.counts.total(NAME, part=part, cache="miss")
        use[part] = {
            "lookups_per_step": (hits + misses) / totals.num_steps,
            "computed_per_step": misses / totals.num_steps,
            "hit_rate": hits / (hits + misses),
        }
    return use
