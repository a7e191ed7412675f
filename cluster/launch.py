"""Launches one request manager with its LLM: placement, ranks, client, engine.

The same for a Ray Serve replica, which brings a placement group along, and for a plain process
connected to a cluster. What runs in the ranks' processes is `actors.llm`; this module decides only
where, and with which part of the configuration.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from actors.errors import ModelError
from actors.llm.actor import LLMActor
from actors.messages import LLMDescription
from actors.request_manager.clients import LLMClient
from actors.request_manager.drafters import DRAFTERS
from actors.request_manager.engine import Engine
from actors.vocabulary import Vocabulary
from cluster import ray_api
from cluster.config import Config
from cluster.metrics import Metrics
from cluster.models import resolve_model
from cluster.placement import STRATEGY, Placement, plan_placement
from cluster.supervisor import RankGroup, RankMaker
from cluster.tokenizer import load_vocabulary

PLACEMENT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Launched:
    """A running manager; whoever launched it stops it."""

    engine: Engine
    description: LLMDescription
    metrics: Metrics
    _ranks: RankGroup
    _client: LLMClient
    _group: ray_api.PlacementGroup

    async def stop(self) -> None:
        """End requests, ranks and reservation."""
        await self.engine.stop()
        await self._client.close()
        self._ranks.kill()
        self._group.remove()


async def launch(config: Config) -> Launched:
    """Start everything that one manager needs; it is ready for requests on return.

    Assumes a connection to a Ray cluster, and a running event loop that stays.

    Raises:
        ModelError: the model cannot be served.
        PeerError: an actor cannot be started or reached.
    """
    folder = await asyncio.to_thread(resolve_model, config.model.path)
    placement = plan_placement(config, ray_api.num_gpus())
    group = await asyncio.to_thread(
        ray_api.use_placement_group, placement.bundles, STRATEGY, PLACEMENT_TIMEOUT_S
    )
    ranks = RankGroup(_rank_makers(config, folder, placement), placement, group)
    try:
        # The vocabulary is read while the ranks load.
        vocabulary, addresses = await asyncio.gather(
            asyncio.to_thread(load_vocabulary, folder), ranks.start()
        )
        return await _connect(config, vocabulary, addresses, ranks, group)
    except BaseException:
        ranks.kill()
        group.remove()
        raise


def _rank_makers(config: Config, folder: Path, placement: Placement) -> list[RankMaker]:
    """For each rank what makes it, to be run in its own process."""
    return [
        functools.partial(
            _make_rank, config, folder, "cuda" if "GPU" in bundle.resources else "cpu"
        )
        for bundle in placement.ranks
    ]


def _make_rank(config: Config, folder: Path, device: str) -> LLMActor:
    """Load the LLM; runs in the rank's process, the only one that imports torch."""
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
    )
    ports = config.grpc.port_range
    return LLMActor(
        functools.partial(load_rank, options),
        ports=(0,) if ports == "auto" else range(ports[0], ports[1] + 1),
    )


async def _connect(
    config: Config,
    vocabulary: Vocabulary,
    addresses: list[str],
    ranks: RankGroup,
    group: ray_api.PlacementGroup,
) -> Launched:
    client = LLMClient(addresses, ranks.restart, config.llm.step_timeout_s)
    try:
        description = await client.describe()
        if len(vocabulary) > description.vocab_size:
            raise ModelError(
                f"the tokenizer has {len(vocabulary)} tokens, "
                f"the LLM's head only {description.vocab_size}"
            )
        metrics = Metrics(CollectorRegistry(), config.model.name)
        engine = Engine(
            client,
            description,
            vocabulary,
            config.speculation,
            config.scheduler,
            [DRAFTERS[name]() for name in config.speculation.drafters],
            metrics,
            num_groups=config.llm.pipeline_parallel,
        )
        await engine.start()
    except BaseException:
        await client.close()
        raise
    return Launched(engine, description, metrics, ranks, client, group)
