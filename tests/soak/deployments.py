"""The application on a Ray cluster of the test's own, deployed as by Serve's REST interface."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.bench.server import free_port
from tests.processes import descendants

PATIENCE_S = 300.0


@dataclass
class Deployed:
    """An application that can be deployed again with another configuration."""

    content: dict[str, Any]
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def deploy(self, **sections: Mapping[str, Any]) -> None:
        """Have Serve replace what runs, with these sections of the configuration changed."""
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        self.content |= sections
        arguments = self.content | {"api": {"port": self.port, "drain_timeout_s": PATIENCE_S}}
        application = {
            "name": "treeserve",
            "route_prefix": "/",
            "import_path": "deploy.app:application",
            "args": arguments,
        }
        schema = ServeDeploySchema(proxy_location="Disabled", applications=[application])
        _get_global_client().deploy_apps(schema)

    def wait_until_running(self) -> None:
        """Every replica is of the last deployment, and those before it have ended."""
        from ray import serve

        deadline = time.monotonic() + PATIENCE_S
        while True:
            application = serve.status().applications["treeserve"]
            counts = [status.replica_states for status in application.deployments.values()]
            if application.status == "RUNNING" and all(set(c) == {"RUNNING"} for c in counts):
                return
            if time.monotonic() > deadline or application.status == "DEPLOY_FAILED":
                raise TimeoutError(f"not deployed: {application}")
            time.sleep(0.2)

    def pids(self, title: str) -> set[int]:
        """Of the processes with such a title."""
        return {process.pid for process in descendants(title)}


@contextlib.contextmanager
def deployed(content: dict[str, Any], num_cpus: int) -> Iterator[Deployed]:
    """The application with this configuration, up, on a cluster with room for so many CPUs."""
    from cluster import ray_api
    from deploy.environment import prepare_environment

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare_environment()
    ray_api.prepare_environment()
    try:
        ray_api.start_cluster(num_cpus)
        from ray import serve

        serve.start(proxy_location="Disabled")
        running = Deployed(content)
        running.deploy()
        running.wait_until_running()
        yield running
        serve.shutdown()
    finally:
        ray_api.stop_cluster()
