"""The application on the cluster that this process is connected to: up, changed, drained, down."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import threading
import time
from collections.abc import Sequence

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from actors.errors import PeerError
from actors.ssm.config import SSMConfig
from cluster import daemons, ray_api
from cluster.config import Config
from cluster.placement import plan_placement
from deploy.app import APPLICATION, LAST_WORDS_S, MANAGER_NAME, SHUTDOWN_GRACE_S, build_application
from deploy.manager_handle import map_error

WATCH_S = 0.5
SERVE_GRACE_S = 3.0
"""What Serve may take on top to take itself down."""


def start_serving(config: Config) -> None:
    """Bring the application up on the connected cluster.

    Assumes that `deploy.environment` was prepared before the cluster was started.

    Raises:
        PeerError: the cluster has no room for it, or it does not come up; says why as far as Serve
            tells.
    """
    logging_config = LoggingConfig(log_level="WARNING", enable_access_log=False)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    ray_api.require_room(plan_placement(config, ray_api.num_gpus()))
    try:
        serve.start(proxy_location="Disabled", logging_config=logging_config)
        serve.run(build_application(config), name=APPLICATION, route_prefix="/")
    except (RayError, RayServeException, RuntimeError) as error:
        raise PeerError(_start_failure(error)) from error


def stop_serving(grace_s: float) -> None:
    """Take the application down; answers that have begun get `grace_s` to end.

    Serve itself waits long for a cluster that is gone already, as when a signal went to all of its
    processes; hence the thread, which is left behind then.
    """
    stopping = threading.Thread(target=_shut_down, args=(grace_s,), daemon=True)
    stopping.start()
    deadline = time.monotonic() + grace_s + LAST_WORDS_S + SHUTDOWN_GRACE_S + SERVE_GRACE_S
    while stopping.is_alive() and time.monotonic() < deadline and daemons.are_alive():
        stopping.join(WATCH_S)


def drain_serving(grace_s: float) -> None:
    """Take no more requests, and return when those that run have ended, or after `grace_s`.

    Assumes a connection to the cluster that the application runs on.

    Raises:
        PeerError: the ingress cannot be reached.
    """
    try:
        asyncio.run(_drain(grace_s))
    except (RayError, RayServeException, TimeoutError) as error:
        raise map_error(error) from error


def swap_draft_models(ssms: Sequence[SSMConfig]) -> None:
    """Put these draft models in the place of those that run.

    Assumes a connection to the cluster that the application runs on.

    Raises:
        TreeServeError: as `DraftPool.swap`, or the request manager cannot be reached; nothing has
            changed.
    """
    try:
        serve.get_app_handle(APPLICATION)  # raises if there is none: that of a deployment waits
        asyncio.run_coroutine_threadsafe(_swap(ssms), _lasting_loop()).result()
    except (RayError, RayServeException) as error:
        raise map_error(error) from error


def _shut_down(grace_s: float) -> None:
    with contextlib.suppress(RayError, RayServeException, TimeoutError):
        asyncio.run(_drain(grace_s))
    with contextlib.suppress(RayError, RayServeException, TimeoutError):
        serve.shutdown()


async def _drain(grace_s: float) -> None:
    async with asyncio.timeout(grace_s + 2 * LAST_WORDS_S):
        await serve.get_app_handle(APPLICATION).drain.remote(grace_s)


async def _swap(ssms: Sequence[SSMConfig]) -> None:
    managers = serve.get_deployment_handle(MANAGER_NAME, APPLICATION)
    await managers.broadcast("swap_draft_models", ssms).results_async()


@functools.cache
def _lasting_loop() -> asyncio.AbstractEventLoop:
    """Runs as long as this process: Serve ties a handle to the loop that uses it first."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _start_failure(error: Exception) -> str:
    """Why the application did not come up: the last line of the first replica's traceback."""
    application = serve.status().applications.get(APPLICATION)
    for deployment in application.deployments.values() if application else ():
        lines = [line.strip() for line in deployment.message.splitlines() if line.strip()]
        if "Error" in deployment.message and lines:
            return re.sub(r"^actors\.errors\.\w+: ", "", lines[-1])
    return f"Ray Serve did not start the application: {ray_api.first_line(error)}"
