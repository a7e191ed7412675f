"""Launches one request manager with its LLM and draft models: placement, actors, clients, engine.

The same for a Ray Serve replica, which brings a placement group along, and for a plain process
connected to a cluster. What runs in the actors' processes is `actors.llm` and `actors.ssm`; this
module decides only where, and with which part of the configuration.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry

from actors import rpc
from actors.errors import ModelError
from actors.llm.actor import LLMActor
from actors.llm.parallel.grid import Grid
from actors.meeting import Meeting
from actors.messages import LLMDescription
from actors.request_manager.clients import LLMClient
from actors.request_manager.drafter_names import SSM
from actors.request_manager.drafters import DRAFTERS
from actors.request_manager.engine import Engine
from actors.request_manager.ports import Drafter, Encode
from actors.request_manager.ssm_client import SSMDrafter
from actors.ssm.actor import SSMActor
from actors.ssm.config import SSMConfig
from actors.vocabulary import Vocabulary
from cluster import ray_api
from cluster.config import Config
from cluster.draft_pool import DraftPool, Seat, draft_parts
from cluster.logs import set_up_logging
from cluster.long_lived import keep_what_is_loaded
from cluster.metrics import RANKS, Metrics, Part
from cluster.metrics_server import (
    ExposedActor,
    MetricsServer,
    Target,
    process_registry,
    watch_certificate,
)
from cluster.models import resolve_draft_model, resolve_model
from cluster.observed import ObservedDrafter, ObservedDrafting, ObservedRank
from cluster.placement import Placement, plan_placement
from cluster.step_spans import StepSpans
from cluster.supervisor import ActorGroup, BodyMaker
from cluster.tokenizer import load_encoder, load_vocabulary
from cluster.trace import StepTrace
from cluster.tracing import open_tracing

PLACEMENT_TIMEOUT_S = 60.0

MANAGER, LLM = "manager", "llm"
"""What a process is, beside `SSM`."""


@dataclass(frozen=True)
class Launched:
    """A running manager; whoever launched it stops it.

    Attributes:
        tracer: of the manager's process; None if nothing is traced.
    """

    engine: Engine
    description: LLMDescription
    metrics: Metrics
    tracer: Tracer | None
    _metrics_address: str
    _ranks: ActorGroup
    _pool: DraftPool
    _resources: AsyncExitStack

    def targets(self) -> list[Target]:
        """Where Prometheus finds the processes that run now."""
        return [
            Target(self._metrics_address, {"part": MANAGER, "index": "0"}),
            *_targets(LLM, self._ranks.metrics_addresses),
            *self._pool.targets(),
        ]

    async def swap_draft_models(self, ssms: Sequence[SSMConfig]) -> None:
        """Put other draft models in the place of those that run; raises as `DraftPool.swap`."""
        await self._pool.swap(ssms, self.engine.begin_anew)

    async def stop(self) -> None:
        """End requests, actors and reservation."""
        await self.engine.stop()
        await self._resources.aclose()


class _Language(NamedTuple):
    """What drafters without a model know of the LLM."""

    vocabulary: Vocabulary
    encode: Encode


def _load_language(folder: Path) -> _Language:
    vocabulary = load_vocabulary(folder)
    return _Language(vocabulary, load_encoder(folder, vocabulary))


async def launch(config: Config) -> Launched:
    """Start everything that one manager needs; it is ready for requests on return.

    Assumes a connection to a Ray cluster, and a running event loop that stays.

    Raises:
        ModelError: the model cannot be served, or a draft model does not fit it.
        ConfigError: the KV memory or the trace file cannot be.
        PeerError: an actor cannot be started or reached.
    """
    folder = await asyncio.to_thread(resolve_model, config.model.path)
    placement = plan_placement(config, ray_api.num_gpus())
    async with AsyncExitStack() as resources:
        group = await asyncio.to_thread(ray_api.use_placement_group, placement, PLACEMENT_TIMEOUT_S)
        resources.callback(group.remove)
        registry = process_registry(MANAGER)
        trace, tracer = _open_trace(config, resources), _open_tracer(config, resources)
        spans = StepSpans(tracer) if tracer else None
        metrics = Metrics(
            registry,
            config.model.name,
            config.drafter_names,
            trace,
            spans,
            (RANKS, *draft_parts(config)),
            config.scheduler.max_running_requests,
        )
        ranks = ActorGroup(
            RANKS.kind,
            _rank_makers(config, folder, placement),
            placement.rank_places,
            group,
            config.llm.start_timeout_s,
            functools.partial(metrics.part_is_up, RANKS),
        )
        resources.callback(ranks.kill)
        hire = functools.partial(_hire_ssm, folder, group)
        connect = functools.partial(_connect_ssm, config, metrics)
        pool = DraftPool(config, placement.ssm_places, hire, connect, metrics.part_is_up)
        resources.push_async_callback(pool.close)
        # The vocabulary is read while the actors load.
        language, addresses, _ = await asyncio.gather(
            asyncio.to_thread(_load_language, folder), ranks.start(), pool.start()
        )
        client = LLMClient(
            addresses,
            ranks.restart,
            config.llm.step_timeout_s,
            on_reply=metrics.rank_replied,
            tls=config.grpc.tls,
        )
        resources.push_async_callback(client.close)
        description = await client.describe()
        _check_vocabulary(language.vocabulary, description)
        metrics.watch_ranks(lambda: client.descriptions)
        drafters = await _drafters(config, description, language, pool, metrics, spans)
        engine = Engine(
            client,
            description,
            language.vocabulary,
            config.speculation,
            config.scheduler,
            drafters,
            metrics,
            num_groups=config.llm.pipeline_parallel,
        )
        await engine.start()
        exposed = await asyncio.to_thread(_expose, config, registry)
        resources.callback(exposed.close)
        return Launched(
            engine, description, metrics, tracer, exposed.address, ranks, pool, resources.pop_all()
        )


def _open_trace(config: Config, resources: AsyncExitStack) -> StepTrace | None:
    llm = config.llm
    if llm.trace_file is None:
        return None
    num_ranks = llm.tensor_parallel * llm.pipeline_parallel
    trace = StepTrace(Path(llm.trace_file), num_ranks, llm.pipeline_parallel)
    resources.callback(trace.close)
    return trace


def _open_tracer(config: Config, resources: AsyncExitStack) -> Tracer | None:
    tracing = open_tracing(config.tracing, MANAGER)
    if tracing is None:
        return None
    resources.push_async_callback(tracing.close)
    return tracing.tracer


def _check_vocabulary(vocabulary: Vocabulary, description: LLMDescription) -> None:
    if len(vocabulary) > description.vocab_size:
        raise ModelError(
            f"the tokenizer has {len(vocabulary)} tokens, "
            f"the LLM's head only {description.vocab_size}"
        )


async def _drafters(
    config: Config,
    llm: LLMDescription,
    language: _Language,
    pool: DraftPool,
    metrics: Metrics,
    spans: StepSpans | None,
) -> list[Drafter]:
    """The drafters in the order of the configuration."""
    drafters: list[Drafter] = []
    on_call = spans.drafter_called if spans else None
    for name in config.speculation.drafters:
        if name != SSM:
            drafters.append(ObservedDrafter(DRAFTERS[name](config.speculation, *language), metrics))
            continue
        observe = functools.partial(ObservedDrafter, metrics=metrics, on_call=on_call)
        drafters += await pool.open(llm.weights_hash, observe)
    return drafters


def _hire_ssm(
    llm_folder: Path,
    group: ray_api.PlacementGroup,
    config: Config,
    seat: Seat,
    note: Callable[[bool], None],
) -> ActorGroup:
    """The process of a draft model. Raises ModelError if there is no such folder."""
    folder = resolve_draft_model(config.ssms[seat.index].path)
    make = functools.partial(_make_ssm, config, seat.index, seat.part, folder, llm_folder)
    return ActorGroup(seat.part.kind, [make], [seat.place], group, config.llm.start_timeout_s, note)


def _connect_ssm(
    config: Config,
    metrics: Metrics,
    address: str,
    respawn: Callable[[], Awaitable[str]],
    part: Part,
) -> SSMDrafter:
    return SSMDrafter(
        address,
        respawn,
        config.speculation.draft_deadline_ms / 1e3,
        part.drafter,
        functools.partial(metrics.noise_used, SSM),
        config.grpc.tls,
    )


def _targets(part: str, addresses: Sequence[str]) -> list[Target]:
    return [
        Target(address, {"part": part, "index": str(index)})
        for index, address in enumerate(addresses)
    ]


def _rank_makers(config: Config, folder: Path, placement: Placement) -> list[BodyMaker]:
    """For each rank what makes it, to be run in its own process."""
    return [
        functools.partial(
            _make_rank, config, folder, rank, "cuda" if "GPU" in place.resources else "cpu"
        )
        for rank, place in enumerate(placement.rank_places)
    ]


def _make_rank(
    config: Config, folder: Path, rank: int, device: str, meeting: Meeting | None = None
) -> ExposedActor:
    """Load the LLM, or one rank's part of it; runs in the rank's process."""
    from actors.llm.rank import RankOptions, load_rank

    memory = config.scheduler.kv_memory_bytes
    options = RankOptions(
        path=folder,
        model_id=config.model.name,
        dtype=config.model.dtype,
        device=device,
        kv_block_tokens=config.scheduler.kv_block_tokens,
        kv_memory_bytes=None if memory == "auto" else memory,
        llm=config.llm,
        vocabulary=functools.partial(load_vocabulary, folder),
    )
    if meeting is None and config.llm.offload == "none":
        load = functools.partial(load_rank, options)
    else:
        from actors.llm.parallel.rank_loading import load_rank_of_several

        meeting = meeting or Meeting.open(rpc.LOOPBACK)  # DeepSpeed wants one of a rank alone too
        grid = Grid(config.llm.tensor_parallel, config.llm.pipeline_parallel, rank)
        load = functools.partial(load_rank_of_several, options, grid, meeting)
    set_up_logging(config.logs, f"{LLM} {rank}")
    registry = process_registry(LLM, rank)
    actor = LLMActor(
        lambda: ObservedRank(load(), registry),
        ports=_ports(config.grpc.port_range),
        tls=config.grpc.tls,
    )
    keep_what_is_loaded()
    return ExposedActor(actor, _expose(config, registry))


def _make_ssm(
    config: Config, index: int, part: Part, folder: Path, llm_folder: Path
) -> ExposedActor:
    """Load a draft model; runs in its actor's process."""
    from actors.ssm.speculator import SpeculatorOptions, load_speculator

    options = SpeculatorOptions(
        path=folder,
        llm_path=llm_folder,
        ssm=config.ssms[index],
        expansion=config.speculation.expansion,
        index=index,
    )
    set_up_logging(config.logs, f"{part.drafter} {part.replica}")
    registry = process_registry(part.drafter, part.replica)
    actor = SSMActor(
        lambda: ObservedDrafting(load_speculator(options), registry, config.model.name),
        ports=_ports(config.grpc.port_range),
        tls=config.grpc.tls,
    )
    keep_what_is_loaded()
    return ExposedActor(actor, _expose(config, registry))


def _expose(config: Config, registry: CollectorRegistry) -> MetricsServer:
    """Serve this process's metrics, of its certificate too."""
    if config.grpc.tls is not None:
        watch_certificate(registry, config.grpc.tls)
    ports = _ports(config.metrics.port_range)
    return MetricsServer(registry, config.metrics.host, ports, ray_api.own_node().host)


def _ports(port_range: tuple[int, int] | Literal["auto"]) -> Sequence[int]:
    """What a server may listen on; 0 is any."""
    return (0,) if port_range == "auto" else range(port_range[0], port_range[1] + 1)
