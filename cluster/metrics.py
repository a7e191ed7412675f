"""Prometheus metrics of one manager: an observer of the engine, on a registry that is handed in.

Counts and seconds as the engine reports them, nothing estimated. The `vllm:` names are those that
public benchmark clients read. Internal requests (readiness probes) are left out of request counts;
the LLM steps that they take are steps like any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, generate_latest

from actors.messages import LLMDescription, StepReply
from actors.request_manager.depth_counts import DepthCounts
from actors.request_manager.generation import FinishReason
from actors.request_manager.ports import StepRecord
from cluster.load import Load
from cluster.metric_maker import MetricMaker
from cluster.step_spans import StepSpans
from cluster.trace import StepTrace

DRAFTER_OUTCOMES = ("answered", "empty", "late", "failed")
NODE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DEPTH_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
LATENCY_BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
TOKEN_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip
STREAM_BUCKETS = tuple(size * 10.0**power for power in range(6, 13) for size in (1, 2, 5))
STEP_BUCKETS_S = (
    0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3, 1.0, 3.0,
)  # fmt: skip


class Part(NamedTuple):
    """What can fail and be started again by itself; the ranks count as one.

    Attributes:
        kind: what Ray calls its process: `LLMRank` or `DraftModel`, behind a manager.
        drafter: of a draft model its name; empty for the ranks.
        replica: of a draft model, which of its actors.
    """

    kind: str
    drafter: str = ""
    replica: int = 0

    @property
    def labels(self) -> tuple[str, str, str]:
        return self.kind, self.drafter, str(self.replica)


RANKS = Part("LLMRank")


class Metrics:
    """Implements `ports.Observer`.

    What there can be is there from the start, at zero: rates need a first value.

    Args:
        registry: where the metrics live; one manager a registry.
        model_name: the value of the label `model_name` of all of them.
        drafters: names of those that will be asked.
        trace, spans: are told of steps too; None for nobody.
        parts: the actors that there will be.
        max_running: requests that may run at one time.

    Attributes:
        load: how loaded the manager is.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        model_name: str,
        drafters: Collection[str] = (),
        trace: StepTrace | None = None,
        spans: StepSpans | None = None,
        parts: Iterable[Part] = (RANKS,),
        max_running: int = 64,
    ) -> None:
        self._registry = registry
        self._trace = trace
        self._spans = spans
        make = MetricMaker(registry, model_name)
        self.load = Load(make, max_running)
        self._finished = make.counters(
            "treeserve_requests", "Requests that ended, by reason.", "finish_reason"
        )
        self._running = make.gauge("treeserve_requests_running", "Requests that hold KV blocks.")
        self._waiting = make.gauge("treeserve_requests_waiting", "Requests in the queue.")
        self._kv_used = make.gauge("treeserve_kv_blocks_used", "KV blocks in use.")
        self._kv_total = make.gauge("treeserve_kv_blocks_total", "KV blocks that there are.")
        self._queried = make.counter(
            "treeserve_prefix_cache_queries", "Tokens looked up in the prefix cache."
        )
        self._reused = make.counter(
            "treeserve_prefix_cache_hits", "Tokens whose KV was found in the prefix cache."
        )
        self._preemptions = make.counter(
            "treeserve_preemptions", "Requests whose KV was given up for others."
        )
        self._prompt_tokens = make.counter(
            "treeserve_prompt_tokens", "Prompt tokens of the requests that ended."
        )
        self._output_tokens = make.counter(
            "treeserve_generation_tokens", "Output tokens of the requests that ended."
        )
        self._steps = make.counter("treeserve_llm_steps", "Forward passes of the LLM.")
        self._rows = make.histogram(
            "treeserve_step_rows", "Requests in one LLM step.", NODE_BUCKETS
        )
        self._committed = make.counter(
            "treeserve_committed_tokens", "Output tokens that steps brought, as they came."
        )
        self._drafted = make.counters(
            "treeserve_draft_tokens", "Draft tokens verified, for each proposer.", "drafter"
        )
        self._accepted = make.counters(
            "treeserve_accepted_tokens", "Draft tokens accepted, for each proposer.", "drafter"
        )
        self._tree_nodes = make.histogram(
            "treeserve_tree_nodes", "Draft nodes in the trees of one LLM step.", NODE_BUCKETS
        )
        self._tree_depth = make.histogram(
            "treeserve_tree_depth",
            "Drafts on the longest path of one request's tree.",
            DEPTH_BUCKETS,
        )
        self._reached = make.counters(
            "treeserve_depth_reached",
            "Requests' steps that accepted a draft at every depth above this one, from 0.",
            "depth",
        )
        self._offered = make.counters(
            "treeserve_depth_offered", "Those of them that had a draft to verify there.", "depth"
        )
        self._offered_by = make.counters(
            "treeserve_depth_offered_by_drafter", "The same for each proposer.", "drafter", "depth"
        )
        self._accepted_by = make.counters(
            "treeserve_depth_accepted_by_drafter",
            "Drafts accepted at a depth, for each proposer.",
            "drafter",
            "depth",
        )
        self._noise = make.counters(
            "treeserve_noise_positions",
            "Positions whose noise was needed, by who needed it and whether it was at hand.",
            "part",
            "cache",
        )
        self._streamed = make.counter(
            "treeserve_offload_bytes", "Bytes of the LLM's weights that were streamed."
        )
        self._step_bytes = make.histogram(
            "treeserve_offload_step_bytes",
            "Those of one LLM step; of stages that overlap, about.",
            STREAM_BUCKETS,
        )
        self._token_bytes = make.histogram(
            "treeserve_offload_token_bytes",
            "Those of one LLM step, for each output token that it brought.",
            STREAM_BUCKETS,
        )
        self._streamed_for: defaultdict[tuple[int, int], int]  # by epoch and step
        self._streamed_for = defaultdict(int)
        self._part_up = make.gauges(
            "treeserve_part_up",
            "1 while an actor of the manager works, 0 while it is away; the ranks count as one.",
            "part",
            "drafter",
            "index",
        )
        self._part_failures = make.counters(
            "treeserve_part_failures",
            "How often an actor of the manager had to be replaced.",
            "part",
            "drafter",
            "index",
        )
        self._first_token = make.histogram(
            "treeserve_time_to_first_token_seconds",
            "From arrival at the manager to the first token.",
            LATENCY_BUCKETS_S,
        )
        self._per_token = make.histogram(
            "treeserve_time_per_output_token_seconds",
            "Mean time between the tokens of a request after its first.",
            TOKEN_BUCKETS_S,
        )
        self._whole = make.histogram(
            "treeserve_e2e_request_seconds",
            "From arrival at the manager to the end.",
            LATENCY_BUCKETS_S,
        )
        self._phases = make.histograms(
            "treeserve_step_seconds",
            "Seconds in each phase of a step; forward and sample are parts of step.",
            STEP_BUCKETS_S,
            "phase",
        )
        self._drafter_calls = make.counters(
            "treeserve_drafter_calls",
            "Times that a drafter was asked: answered, empty, late or failed.",
            "drafter",
            "outcome",
        )
        self._drafter_seconds = make.histograms(
            "treeserve_drafter_seconds", "From asking a drafter.", STEP_BUCKETS_S, "drafter"
        )
        self._num_drafts = make.counter("vllm:spec_decode_num_drafts", "Trees verified.")
        self._num_draft_tokens = make.counter(
            "vllm:spec_decode_num_draft_tokens", "Draft nodes verified."
        )
        self._num_accepted = make.counter(
            "vllm:spec_decode_num_accepted_tokens", "Draft nodes accepted."
        )
        self._accepted_at = make.counters(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft nodes accepted, by depth below the root, from 0.",
            "position",
        )
        self._begin_at_zero(drafters, parts)

        self._held = make.gauges(
            "treeserve_rank_parameters", "Parameters that a rank of the LLM holds.", "rank"
        )
        self._held_bytes = make.gauges(
            "treeserve_rank_weight_bytes", "What they take, quantised if they are.", "rank"
        )
        self._load = make.gauges(
            "treeserve_rank_load_seconds", "What a rank took to load them.", "rank"
        )
        self._peak = make.gauges(
            "treeserve_rank_load_peak_bytes", "Memory resident at most while it did.", "rank"
        )

        self._ranks: Callable[[], Sequence[LLMDescription]] = tuple

    def watch_ranks(self, ranks: Callable[[], Sequence[LLMDescription]]) -> None:
        """What the ranks of the LLM say of themselves is asked whenever metrics are read."""
        self._ranks = ranks

    def text(self) -> str:
        """All metrics in Prometheus' text format 0.0.4."""
        for number, rank in enumerate(self._ranks()):
            self._held(str(number)).set(rank.num_held_parameters)
            self._held_bytes(str(number)).set(rank.held_bytes)
            self._load(str(number)).set(rank.load_s)
            self._peak(str(number)).set(rank.peak_memory_bytes)
        return generate_latest(self._registry).decode()

    def request_finished(
        self,
        reason: FinishReason,
        prompt_tokens: int,
        output_tokens: int,
        arrival_s: float,
        first_token_s: float | None,
        finish_s: float,
        internal: bool,
    ) -> None:
        if internal:
            return
        self._finished(reason.value).inc()
        self._prompt_tokens.inc(prompt_tokens)
        self._output_tokens.inc(output_tokens)
        self._whole.observe(finish_s - arrival_s)
        if first_token_s is None:
            return
        self._first_token.observe(first_token_s - arrival_s)
        if output_tokens > 1:
            self._per_token.observe((finish_s - first_token_s) / (output_tokens - 1))

    def rank_replied(self, rank: int, reply: StepReply) -> None:
        """A rank has done its part of a step."""
        if self._trace is not None:
            self._trace.rank_replied(rank, reply)
        if reply.streamed_bytes:
            self._streamed_for[reply.epoch, reply.step_id] += reply.streamed_bytes

    def step_done(self, record: StepRecord) -> None:
        if self._trace is not None:
            self._trace.step_done(record)
        if self._spans is not None:
            self._spans.step_done(record)
        self._steps.inc()
        self._rows.observe(record.num_rows)
        self._committed.inc(record.num_committed)
        self._queried.inc(record.queried_tokens)
        self._reused.inc(record.reused_tokens)
        self._preemptions.inc(record.preemptions)
        self.load.admitted(record.admitted_tokens)
        for phase, seconds in record.phase_s.items():
            self._phases(phase).observe(seconds)
        self._phases("forward").observe(record.forward_s)
        self._phases("sample").observe(record.sample_s)
        self.noise_used("llm", record.noise_hits, record.noise_misses)
        self._count_depths(record.depths)
        if record.num_draft_nodes:
            self._count_drafts(record)
        self._count_streamed(record)

    def noise_used(self, part: str, hits: int, misses: int) -> None:
        """A part (`llm`, `ssm`) had a position's noise at hand, or computed it, so many times."""
        self._noise(part, "hit").inc(hits)
        self._noise(part, "miss").inc(misses)

    def drafter_called(self, drafter: str, outcome: str, seconds: float) -> None:
        """A drafter was asked by a step of the manager."""
        self._drafter_calls(drafter, outcome).inc()
        self._drafter_seconds(drafter).observe(seconds)

    def part_is_up(self, part: Part, is_up: bool) -> None:
        """An actor has begun to work, or has failed."""
        self._part_up(*part.labels).set(is_up)
        self._part_failures(*part.labels).inc(not is_up)

    def gauges(
        self,
        running: int,
        waiting: int,
        waiting_tokens: int,
        kv_blocks_used: int,
        kv_blocks_total: int,
    ) -> None:
        self.load.now(running, waiting_tokens, kv_blocks_used, kv_blocks_total)
        self._running.set(running)
        self._waiting.set(waiting)
        self._kv_used.set(kv_blocks_used)
        self._kv_total.set(kv_blocks_total)

    def _count_drafts(self, record: StepRecord) -> None:
        self._tree_nodes.observe(record.num_draft_nodes)
        _add_all(self._drafted, record.drafted)
        _add_all(self._accepted, record.accepted)
        self._num_drafts.inc(len(record.accepted_depths))
        self._num_draft_tokens.inc(record.num_draft_nodes)
        self._num_accepted.inc(sum(record.accepted_depths))
        for depth in range(max(record.accepted_depths, default=0)):
            reached = sum(accepted > depth for accepted in record.accepted_depths)
            self._accepted_at(str(depth)).inc(reached)

    def _count_streamed(self, record: StepRecord) -> None:
        """What all ranks streamed for the step, though others be under way; and what is left of
        earlier ones: lost with their epoch, or told of too late."""
        epoch = max((epoch for epoch, _ in self._streamed_for), default=0)
        over = [step for step in self._streamed_for if step <= (epoch, record.step_id)]
        streamed = sum(self._streamed_for.pop(step) for step in over)
        if streamed:
            self._streamed.inc(streamed)
            self._step_bytes.observe(streamed)
            if record.num_committed:
                self._token_bytes.observe(streamed / record.num_committed)

    def _count_depths(self, depths: DepthCounts) -> None:
        for depth, count in depths.reached.items():
            self._reached(str(depth)).inc(count)
        for depth, count in depths.offered.items():
            self._offered(str(depth)).inc(count)
        for (drafter, depth), count in depths.offered_by.items():
            self._offered_by(drafter, str(depth)).inc(count)
        for (drafter, depth), count in depths.accepted_by.items():
            self._accepted_by(drafter, str(depth)).inc(count)
        for depth in depths.tree_depths.elements():
            self._tree_depth.observe(depth)

    def _begin_at_zero(self, drafters: Collection[str], parts: Iterable[Part]) -> None:
        for reason in FinishReason:
            self._finished(reason.value)
        for part in parts:
            self._part_failures(*part.labels)
        for counters in (self._reached, self._offered, self._accepted_at):
            counters("0")
        for drafter in drafters:
            self._drafted(drafter)
            self._accepted(drafter)
            self._offered_by(drafter, "0")
            self._accepted_by(drafter, "0")
            for outcome in DRAFTER_OUTCOMES:
                self._drafter_calls(drafter, outcome)


def _add_all(counters: Callable[[str], Counter], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        counters(name).inc(count)
