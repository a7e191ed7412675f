"""From counters and seconds to acceptance and foretold speed-up: figures worked out by hand."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from actors.request_manager.depth_counts import DepthCounts
from actors.request_manager.ports import StepRecord
from actors.tree import TokenTree
from cluster.bench.acceptance import TREE, acceptance_of
from cluster.bench.noise_use import noise_use
from cluster.bench.prediction import Totals, finding, predict
from cluster.bench.snapshots import Counts
from cluster.metrics import Metrics

CHAIN = TokenTree.chain([5, 6, 7])
PROPOSERS = [{"ssm", "prompt_lookup"}, {"ssm"}, {"ssm"}]


def record(depths: DepthCounts, **more: int) -> StepRecord:
    return StepRecord(
        num_rows=1,
        num_tokens=4,
        num_draft_nodes=3,
        num_committed=2,
        drafted={},
        accepted={},
        accepted_depths=(),
        queried_tokens=0,
        reused_tokens=0,
        preemptions=0,
        phase_s={"draft": 0.25},
        forward_s=0.5,
        sample_s=0.0,
        depths=depths,
        **more,
    )


def counts_of(*accepted: int | None) -> Counts:
    """What the server's text says after steps with a chain of three drafts; None: without one."""
    metrics = Metrics(CollectorRegistry(), "m")
    metrics.step_done(record(DepthCounts()))
    before = Counts.parse(metrics.text())
    for number in accepted:
        depths = DepthCounts()
        if number is None:
            depths.count(TokenTree(), [], [])
        else:
            depths.count(CHAIN, PROPOSERS, range(number))
        metrics.step_done(record(depths, noise_hits=3, noise_misses=1))
    return Counts.parse(metrics.text()) - before


def test_differences_of_snapshots() -> None:
    counts = counts_of(1, 3)
    assert counts.total("treeserve_llm_steps_total") == 2
    assert counts.total("treeserve_step_seconds_sum", phase="draft") == 0.5
    assert (counts + counts).total("treeserve_llm_steps_total") == 4
    assert counts.total("treeserve_llm_steps_total", model_name="other") == 0


def test_acceptance_by_depth() -> None:
    found = acceptance_of(counts_of(0, 1, 3, None))
    tree = found[TREE]
    assert tree.by_depth == [2 / 3, 1 / 2, 1.0]
    assert tree.offered_share == [3 / 4, 1.0, 1.0]
    assert tree.continued == [1 / 2, 1 / 2, 1.0]
    assert tree.rate == 4 / 6
    assert found["ssm"].by_depth == tree.by_depth
    assert found["prompt_lookup"].by_depth == [2 / 3]
    assert found["prompt_lookup"].offered_share == [3 / 4]


def test_nothing_drafted_is_no_acceptance() -> None:
    found = acceptance_of(counts_of(None, None))
    assert set(found) == {TREE}
    assert found[TREE].rate is None


def test_three_predictions() -> None:
    plain = Totals(12.0, 10, 10, 0.0, 10.0, counts_of(*[None] * 10))
    # Four steps that bring 8 tokens: 0 + 1 + 3 + 0 drafts, and four of the LLM's own.
    mode = Totals(7.2, 8, 4, 0.8, 5.6, counts_of(0, 1, 3, None))
    found = predict(plain, mode)
    assert found is not None
    assert (found.c, found.v, found.f) == pytest.approx((0.2, 1.4, 0.2))
    assert found.gamma == 9 / 4
    assert found.tokens_by_depth == 2.0
    assert found.tokens_independent == pytest.approx((1 - (2 / 3) ** 3.25) / (1 / 3))
    assert found.by_alpha == pytest.approx(found.tokens_independent / 1.2)
    assert found.by_depth == pytest.approx(2.0 / 1.2)
    assert found.by_cost == pytest.approx(2.0 * 1.2 / 1.8)
    # 1.2 s a token against 0.9: exactly what the full formula says, for nothing else took time.
    assert found.measured == pytest.approx(1.2 / 0.9)
    assert found.report()["by_cost_to_measured"] == pytest.approx(1.0)
    assert "1.00 from what is in no formula" in finding("ssm", found)


def test_no_prediction_without_drafts() -> None:
    plain = Totals(12.0, 10, 10, 0.0, 10.0, counts_of(None))
    assert predict(plain, plain) is None


def test_noise_use() -> None:
    totals = Totals(1.0, 2, 2, 0.0, 1.0, counts_of(0, 1))
    assert noise_use(totals) == {
        "llm": {"lookups_per_step": 4.0, "computed_per_step": 1.0, "hit_rate": 0.75}
    }
