"""The metrics exporter against the names and counts that clients rely on."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from actors.messages import StepReply
from actors.request_manager.depth_counts import DepthCounts
from actors.request_manager.generation import FinishReason
from actors.request_manager.ports import Observer, StepRecord
from actors.tree import TokenTree
from cluster.metrics import RANKS, Metrics, Part

LABELS = {"model_name": "m"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry, "m")


def step(**changes: object) -> StepRecord:
    values: dict[str, object] = {
        "num_rows": 3,
        "num_tokens": 12,
        "num_draft_nodes": 9,
        "num_committed": 6,
        "drafted": {"prompt_lookup": 9},
        "accepted": {"prompt_lookup": 3},
        "accepted_depths": (2, 0, 1),
        "queried_tokens": 40,
        "reused_tokens": 32,
        "preemptions": 1,
        "phase_s": {"draft": 0.001, "step": 0.01},
        "forward_s": 0.008,
        "sample_s": 0.001,
    }
    return StepRecord(**(values | changes))  # type: ignore[arg-type]


def finish(metrics: Metrics, **changes: object) -> None:
    values: dict[str, object] = {
        "reason": FinishReason.STOP,
        "prompt_tokens": 7,
        "output_tokens": 5,
        "arrival_s": 100.0,
        "first_token_s": 100.5,
        "finish_s": 102.5,
        "internal": False,
    }
    metrics.request_finished(**(values | changes))  # type: ignore[arg-type]


def test_a_finished_request(metrics: Metrics, registry: CollectorRegistry) -> None:
    finish(metrics)
    value = registry.get_sample_value
    assert value("treeserve_requests_total", LABELS | {"finish_reason": "stop"}) == 1
    assert value("treeserve_prompt_tokens_total", LABELS) == 7
    assert value("treeserve_generation_tokens_total", LABELS) == 5
    assert value("treeserve_time_to_first_token_seconds_sum", LABELS) == 0.5
    assert value("treeserve_time_per_output_token_seconds_sum", LABELS) == 0.5
    assert value("treeserve_e2e_request_seconds_sum", LABELS) == 2.5


def test_a_request_without_a_token_has_no_token_times(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    finish(metrics, reason=FinishReason.ABORT, output_tokens=0, first_token_s=None)
    value = registry.get_sample_value
    assert value("treeserve_requests_total", LABELS | {"finish_reason": "abort"}) == 1
    assert value("treeserve_time_to_first_token_seconds_count", LABELS) == 0
    assert value("treeserve_time_per_output_token_seconds_count", LABELS) == 0


def test_one_token_has_no_time_between_tokens(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    finish(metrics, output_tokens=1)
    assert registry.get_sample_value("treeserve_time_per_output_token_seconds_count", LABELS) == 0


def test_internal_requests_are_left_out(metrics: Metrics, registry: CollectorRegistry) -> None:
    finish(metrics, internal=True)
    assert registry.get_sample_value("treeserve_prompt_tokens_total", LABELS) == 0
    assert registry.get_sample_value("treeserve_e2e_request_seconds_count", LABELS) == 0


def test_a_step_with_drafts(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.step_done(step())
    value = registry.get_sample_value
    assert value("treeserve_llm_steps_total", LABELS) == 1
    assert value("treeserve_step_rows_sum", LABELS) == 3
    assert value("treeserve_committed_tokens_total", LABELS) == 6
    lookup = LABELS | {"drafter": "prompt_lookup"}
    assert value("treeserve_draft_tokens_total", lookup) == 9
    assert value("treeserve_accepted_tokens_total", lookup) == 3
    assert value("treeserve_tree_nodes_sum", LABELS) == 9
    assert value("treeserve_step_seconds_sum", LABELS | {"phase": "draft"}) == 0.001
    assert value("treeserve_step_seconds_sum", LABELS | {"phase": "forward"}) == 0.008


def test_what_may_come_is_there_at_zero() -> None:
    registry = CollectorRegistry()
    Metrics(registry, "m", ["ssm"])
    value = registry.get_sample_value
    assert value("treeserve_requests_total", LABELS | {"finish_reason": "error"}) == 0
    assert value("treeserve_accepted_tokens_total", LABELS | {"drafter": "ssm"}) == 0
    calls = LABELS | {"drafter": "ssm", "outcome": "late"}
    assert value("treeserve_drafter_calls_total", calls) == 0
    assert parts_in(registry, "treeserve_part_failures_total") == {("LLMRank", "", "0"): 0}
    assert value("treeserve_depth_reached_total", LABELS | {"depth": "0"}) == 0


def parts_in(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """What a metric says of each part: by kind, drafter and replica."""
    samples = [sample for family in registry.collect() for sample in family.samples]
    return {
        tuple(sample.labels[label] for label in ("part", "drafter", "index")): sample.value
        for sample in samples
        if sample.name == name
    }


def test_actors_that_come_and_go() -> None:
    registry = CollectorRegistry()
    pool = [
        Part("DraftModel", "ssm-0"),
        Part("DraftModel", "ssm-1"),
        Part("DraftModel", "ssm-1", 1),
    ]
    metrics = Metrics(registry, "m", parts=(RANKS, *pool))
    labels = [("LLMRank", "", "0"), ("DraftModel", "ssm-0", "0")]
    labels += [("DraftModel", "ssm-1", "0"), ("DraftModel", "ssm-1", "1")]
    assert parts_in(registry, "treeserve_part_failures_total") == dict.fromkeys(labels, 0)
    for is_up in (True, False, True):
        metrics.part_is_up(RANKS, is_up)
    for part, is_up in ((pool[0], True), (pool[2], True), (pool[2], False)):
        metrics.part_is_up(part, is_up)
    up = {labels[0]: 1, labels[1]: 1, labels[3]: 0}
    assert parts_in(registry, "treeserve_part_up") == up
    counted = dict(zip(labels, (1, 0, 0, 1), strict=True))
    assert parts_in(registry, "treeserve_part_failures_total") == counted


def test_reuse_and_preemption_are_counted(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.step_done(step())
    metrics.step_done(step(queried_tokens=10, reused_tokens=0, preemptions=0))
    value = registry.get_sample_value
    assert value("treeserve_prefix_cache_queries_total", LABELS) == 50
    assert value("treeserve_prefix_cache_hits_total", LABELS) == 32
    assert value("treeserve_preemptions_total", LABELS) == 1


def test_the_names_that_benchmark_clients_read(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.step_done(step())
    value = registry.get_sample_value
    assert value("vllm:spec_decode_num_drafts_total", LABELS) == 3
    assert value("vllm:spec_decode_num_draft_tokens_total", LABELS) == 9
    assert value("vllm:spec_decode_num_accepted_tokens_total", LABELS) == 3
    per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert value(per_position, LABELS | {"position": "0"}) == 2
    assert value(per_position, LABELS | {"position": "1"}) == 1
    assert value(per_position, LABELS | {"position": "2"}) is None


def test_a_step_without_drafts_counts_no_tree(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.step_done(step(num_draft_nodes=0, drafted={}, accepted={}, accepted_depths=()))
    assert registry.get_sample_value("treeserve_llm_steps_total", LABELS) == 1
    assert registry.get_sample_value("vllm:spec_decode_num_drafts_total", LABELS) == 0
    assert registry.get_sample_value("treeserve_tree_nodes_count", LABELS) == 0


def test_depths_by_drafter(metrics: Metrics, registry: CollectorRegistry) -> None:
    depths = DepthCounts()
    depths.count(TokenTree((5, 6), (-1, 0)), [{"ssm", "prompt_lookup"}, {"ssm"}], [0])
    depths.count(TokenTree(), [], [])
    metrics.step_done(step(depths=depths))
    value = registry.get_sample_value
    ssm = LABELS | {"drafter": "ssm"}
    assert value("treeserve_depth_reached_total", LABELS | {"depth": "0"}) == 2
    assert value("treeserve_depth_reached_total", LABELS | {"depth": "1"}) == 1
    assert value("treeserve_depth_offered_total", LABELS | {"depth": "0"}) == 1
    assert value("treeserve_depth_offered_by_drafter_total", ssm | {"depth": "1"}) == 1
    assert value("treeserve_depth_accepted_by_drafter_total", ssm | {"depth": "0"}) == 1
    assert value("treeserve_depth_accepted_by_drafter_total", ssm | {"depth": "1"}) is None
    assert value("treeserve_tree_depth_sum", LABELS) == 2
    assert value("treeserve_tree_depth_count", LABELS) == 1


def test_noise_by_part(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.step_done(step(noise_hits=5, noise_misses=2))
    metrics.noise_used("ssm", 3, 1)
    for part, cache, count in (("llm", "hit", 5), ("llm", "miss", 2), ("ssm", "hit", 3)):
        labels = LABELS | {"part": part, "cache": cache}
        assert registry.get_sample_value("treeserve_noise_positions_total", labels) == count


def test_gauges_are_set_not_added(metrics: Metrics, registry: CollectorRegistry) -> None:
    metrics.gauges(3, 2, 50, 10, 100)
    metrics.gauges(1, 0, 0, 4, 100)
    value = registry.get_sample_value
    assert value("treeserve_requests_running", LABELS) == 1
    assert value("treeserve_requests_waiting", LABELS) == 0
    assert value("treeserve_kv_blocks_used", LABELS) == 4
    assert value("treeserve_kv_blocks_total", LABELS) == 100


def test_the_text_parses_and_every_sample_names_the_model(metrics: Metrics) -> None:
    observer: Observer = metrics
    observer.step_done(step())
    finish(metrics)
    families = list(text_string_to_metric_families(metrics.text()))
    samples = [sample for family in families for sample in family.samples]
    assert samples
    assert {sample.labels["model_name"] for sample in samples} == {"m"}


def test_streamed_weights_by_step_and_by_token(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    metrics.step_done(step())  # nothing is streamed: nothing is observed
    metrics.rank_replied(0, StepReply(0, 1, streamed_bytes=4_000_000))
    metrics.rank_replied(0, StepReply(0, 2, streamed_bytes=3_000_000))  # the next is under way
    metrics.rank_replied(1, StepReply(0, 1, streamed_bytes=8_000_000))
    metrics.step_done(step(num_committed=6, step_id=1))
    metrics.rank_replied(1, StepReply(0, 2, streamed_bytes=2_000_000))
    metrics.step_done(step(num_committed=0, step_id=2))
    metrics.rank_replied(0, StepReply(0, 3, streamed_bytes=1_000_000))  # is lost
    metrics.rank_replied(0, StepReply(1, 0, streamed_bytes=1_000_000))
    metrics.step_done(step(num_committed=0, step_id=0))

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"treeserve_offload_{name}", LABELS)

    assert value("bytes_total") == 19_000_000
    assert (value("step_bytes_count"), value("step_bytes_sum")) == (3, 19_000_000)
    assert (value("token_bytes_count"), value("token_bytes_sum")) == (1, 2_000_000)
