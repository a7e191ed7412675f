"""The Ray Serve application: an ingress (HTTP, text) before request managers (token IDs).

Serve is set up for latency. The tokens of a step cross it as one message of one gRPC stream between
the two deployments, and leave by an HTTP server inside the ingress: Serve's proxies, which would be
one more process in their way, are not started.

How many managers there are follows `llm.replicas`. When the application is deployed anew with
another configuration, Serve replaces them one by one, and their requests go on with those that are
there, or wait; the next ingress begins to listen beside the old one, which then ends what it has
begun.

Assumes one ingress, but for that time: it owns the one port. Serve's own gRPC servers bind to all
addresses; Ray's token keeps strangers out.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from actors.errors import PeerUnavailable, TreeServeError, UnavailableError
from actors.llm.config import ReplicaRange
from actors.ssm.config import SSMConfig
from actors.verification import Rule
from cluster import ray_api
from cluster.config import Config, config_of
from cluster.launch import MANAGER, Launched, launch
from cluster.logs import set_up_logging
from cluster.long_lived import keep_what_is_loaded
from cluster.metrics_server import Target
from cluster.models import model_note, resolve_model
from cluster.placement import plan_placement
from cluster.tokenizer import load_tokenizer
from cluster.tracing import open_tracing
from deploy import swapped_pool
from deploy.api import build_app
from deploy.api_keys import ApiKeys, read_keys
from deploy.backend import BackendDescription
from deploy.doorkeeper import Door
from deploy.grammar_checks import GrammarChecks
from deploy.http_protocol import ConnectionLimits
from deploy.http_server import HttpServer
from deploy.manager_handle import ManagerHandles, ToOneManager, map_error
from deploy.manager_link import Manager, ManagerLink, Transport
from deploy.output_spans import TracedEngine
from deploy.scaling import ManagerScaling
from deploy.serve_backend import ServeBackend
from deploy.session import Batch, Engine, Group, Sessions
from deploy.settings import ApiSettings

APPLICATION = "treeserve"
MANAGER_NAME = "RequestManager"
MANY = 1_000_000
"""Requests that Serve lets through: the manager's own queue refuses, with the right answer."""
MANY_STARTS = 20
LAST_WORDS_S = 2.0
"""For the error frames of answers that are cut off."""
LINGER_S = 5.0
"""An ingress that has been replaced answers so long what still comes on open connections."""
LEAVE_S = 15.0
"""A manager that is to stop gets so long until the ingresses have left it, at their roll calls."""
SHUTDOWN_GRACE_S = 5.0
LOOK_BACK_S = 10.0
"""The number of managers follows the mean of what they report over so long."""
REPORT_S = 2.0

logger = logging.getLogger(__name__)


class RequestManager:
    """The manager's shell in a Serve replica; owns the LLM of this replica."""

    async def __init__(self, config: Config) -> None:  # type: ignore[misc]  # Serve awaits it
        set_up_logging(config.logs, MANAGER, sys.__stderr__)
        self._config = config
        current = await asyncio.to_thread(swapped_pool.with_kept, config)
        self._launched: Launched = await launch(current)
        engine: Engine = self._launched.engine
        if self._launched.tracer is not None:
            engine = TracedEngine(engine, self._launched.tracer)
        self._sessions = Sessions(engine)
        name = serve.get_replica_context().replica_id.unique_id
        self._described = Manager(name, config.digest, self._description())
        keep_what_is_loaded()

    async def describe(self) -> Manager:
        """Answers the roll call."""
        return self._described

    def _description(self) -> BackendDescription:
        description, config = self._launched.description, self._config
        return BackendDescription(
            model_name=config.model.name,
            max_context_tokens=description.max_request_tokens,
            vocab_size=description.vocab_size,
            weights_hash=description.weights_hash,
            dtype=description.dtype,
            quantization=description.quantization,
            drafters=config.askable_drafters,
            verifications=tuple(Rule),
            max_tree_nodes=config.speculation.max_tree_nodes,
            max_places=config.scheduler.max_running_requests + config.scheduler.max_queued_requests,
            max_queued_tokens=config.scheduler.max_queued_tokens,
            batch_invariant=description.batch_invariant,
            note=model_note(config.model.path),
        )

    async def events(self, session_id: str) -> AsyncGenerator[Batch, None]:
        """Open a session: see `Sessions`."""
        async with aclosing(self._sessions.events(session_id)) as batches:
            async for batch in batches:
                yield batch

    async def exchange(
        self, session_id: str, groups: Sequence[Group], cancelled: Sequence[str]
    ) -> list[TreeServeError | None]:
        """What an open session wants: see `Sessions`."""
        return self._sessions.exchange(session_id, groups, cancelled)

    async def swap_draft_models(self, ssms: Sequence[SSMConfig]) -> None:
        """Put these in the place of those that run; see `DraftPool.swap`."""
        await self._launched.swap_draft_models(ssms)
        await asyncio.to_thread(swapped_pool.keep, self._config, ssms)

    async def check_health(self) -> None:
        """Serve replaces a replica whose loop has ended."""
        self._launched.engine.require_running()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Serve is to tell `ManagerScaling`."""
        return self._launched.metrics.load.signals()._asdict()

    async def metrics_text(self) -> str:
        return self._launched.metrics.text()

    async def targets(self) -> list[Target]:
        return self._launched.targets()

    async def __del__(self) -> None:
        if launched := getattr(self, "_launched", None):
            self._sessions.close()  # first, so that requests go on with the next manager
            await launched.stop()


@serve.ingress()
class Ingress:
    """HTTP and text; everything else is the manager's."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: Config, manager: DeploymentHandle
    ) -> None:
        set_up_logging(config.logs, "ingress", sys.__stderr__)
        folder = await asyncio.to_thread(resolve_model, config.model.path)
        loaded = await asyncio.to_thread(load_tokenizer, folder)
        to = ManagerHandles(manager)
        transport = Transport(
            to.roll_call,
            lambda name, *session: to.stream(name).events.remote(*session),
            lambda name, *wishes: to.one(name).exchange.remote(*wishes),
            (TreeServeError, RayError, RayServeException),
            map_error,
        )
        self._link = ManagerLink(transport, config.digest)
        description = await self._link.start(config.llm.start_timeout_s)
        api = config.api
        backend = ServeBackend(
            description,
            self._link,
            lambda name: to.one(name).metrics_text.remote(),
            lambda name: to.one(name).targets.remote(),
            transport.foreign,
            map_error,
            api.request_timeout_s,
            config.llm.start_timeout_s,
        )
        keys = read_keys(Path(api.api_keys_file)) if api.api_keys_file else []
        # Beside those with a place, as many more that ask.
        max_inside = 2 * description.max_places * config.llm.replicas.max
        self._door = Door(ApiKeys(keys), api.max_requests_per_key, max_inside)
        settings = ApiSettings(max_body_bytes=api.max_body_bytes, page=api.page)
        self._tracing = open_tracing(config.tracing, "ingress")
        self._grammars = GrammarChecks()
        self._app = build_app(
            backend,
            loaded.tokenizer,
            loaded.vocabulary,
            settings,
            self._door,
            self._tracing.tracer if self._tracing else None,
            check_grammar=self._grammars,
        )
        limits = ConnectionLimits(
            max_connections=api.max_connections,
            receive_timeout_s=api.receive_timeout_s,
            write_timeout_s=api.write_timeout_s,
        )
        self._server = HttpServer(self._app, api.host, api.port, limits)
        self._drain_timeout_s = api.drain_timeout_s
        keep_what_is_loaded()
        self._server.start()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """For Serve, which runs the application's lifespan."""
        return self._app

    async def check_health(self) -> None:
        """Serve replaces a replica whose server has ended."""
        self._server.require_running()

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, let those that run end within `grace_s`, and end the others."""
        await self._end(await self._door.drain(grace_s))

    async def _part(self) -> None:
        """Another ingress listens: end what is inside, and what comes on connections that are open,
        which end with their answers."""
        self._server.stop_listening()
        self._door.is_parting = True
        await asyncio.sleep(LINGER_S)
        await self._end(await self._door.empty(self._drain_timeout_s))

    async def _end(self, is_empty: bool) -> None:
        if not is_empty:
            logger.warning("%d answers are cut off", self._door.num_inside)
        await self._link.close(UnavailableError("the server is shutting down"))
        await self._door.drain(LAST_WORDS_S)
        await self._server.stop()
        await asyncio.to_thread(self._grammars.close)
        if self._tracing is not None:
            await self._tracing.close()

    async def __del__(self) -> None:
        if hasattr(self, "_drain_timeout_s") and not self._door.is_draining:
            await self._part()


def build_application(config: Config, num_starts: int = 1) -> serve.Application:
    """The two deployments, bound.

    Args:
        num_starts: attempts to start a replica before the application counts as failed.
    """
    placement = plan_placement(config, ray_api.num_gpus())
    common = {
        "max_ongoing_requests": MANY,
        "max_constructor_retry_count": num_starts,
        "graceful_shutdown_wait_loop_s": 0.1,
        # Three checks in a row must fail: a replica that hangs is replaced in half a minute.
        "health_check_period_s": 2.0,
        "health_check_timeout_s": 8.0,
        "logging_config": LoggingConfig(log_level="WARNING", enable_access_log=False),
    }
    manager = serve.deployment(
        RequestManager,
        name=MANAGER_NAME,
        ray_actor_options={"num_cpus": placement.manager.resources["CPU"]},
        placement_group_bundles=placement.bundles,
        placement_group_strategy=placement.strategy,
        graceful_shutdown_timeout_s=LEAVE_S,
        request_router_config=RequestRouterConfig(request_router_class=ToOneManager),
        **_number(config.llm.replicas),
        **common,
    )
    ingress = serve.deployment(
        Ingress,
        name="Ingress",
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=LINGER_S + config.api.drain_timeout_s + 2 * SHUTDOWN_GRACE_S,
        max_surge_percent=100,
        **common,
    )
    return ingress.bind(config, manager.bind(config))


def _number(replicas: ReplicaRange) -> dict[str, Any]:
    """What Serve is told of the number of managers."""
    if replicas.is_fixed:
        return {"num_replicas": replicas.max}
    policy = {"wait_s": replicas.wait_s, "occupancy": replicas.occupancy}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=replicas.min,
            max_replicas=replicas.max,
            policy=AutoscalingPolicy(policy_function=ManagerScaling, policy_kwargs=policy),
            upscale_delay_s=replicas.up_delay_s,
            downscale_delay_s=replicas.down_delay_s,
            look_back_period_s=LOOK_BACK_S,
            metrics_interval_s=REPORT_S,
        )
    }


def application(arguments: dict[str, Any]) -> serve.Application:
    """For Serve's configuration files: their `args` are a TreeServe configuration.

    Nobody watches such a cluster start, so what fails is tried again, and if there is no room yet
    the log says what for; nodes may join.

    Raises:
        ConfigError: with every mistake.
    """
    config = config_of(arguments)
    try:
        ray_api.require_room(plan_placement(config, ray_api.num_gpus()))
    except PeerUnavailable as error:
        logger.warning("%s; waiting for it", error)
    return build_application(config, num_starts=MANY_STARTS)
