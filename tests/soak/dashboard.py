"""The REST face of a head's dashboard, through which an operator puts an application."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import httpx

PATIENCE_S = 600.0
APPLICATION = "treeserve"
SERVE = "/api/serve/applications/"


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition never held")
        time.sleep(0.5)


class Dashboard:
    """Of one cluster.

    Args:
        address: `host:port` of the head's dashboard.
        token: of the cluster.
    """

    def __init__(self, address: str, token: str) -> None:
        self._url = f"http://{address}"
        self._token = token

    def answers(self) -> bool:
        try:
            return self._ask("GET", SERVE).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def status(self) -> str:
        """Of the application; empty while the dashboard does not know."""
        with contextlib.suppress(httpx.HTTPError):
            answer = self._ask("GET", SERVE)
            if answer.status_code == httpx.codes.OK:
                return str(answer.json()["applications"].get(APPLICATION, {}).get("status", ""))
        return ""

    def num_nodes(self) -> int:
        """Nodes of the cluster that live."""
        nodes = self._ask("GET", "/nodes?view=summary").json()["data"]["summary"]
        return sum(node["raylet"]["state"] == "ALIVE" for node in nodes)

    def put(self, arguments: dict[str, Any], ingress: dict[str, Any]) -> None:
        """Deploy, and wait until it runs.

        Args:
            arguments: the configuration.
            ingress: what the ingress takes of a node.
        """
        application = {
            "name": APPLICATION,
            "route_prefix": "/",
            "import_path": "deploy.app:application",
            "args": arguments,
            "deployments": [{"name": "Ingress", "ray_actor_options": ingress}],
        }
        self.put_all({"proxy_location": "Disabled", "applications": [application]})

    def put_all(self, config: dict[str, Any]) -> None:
        """The same with all that Serve takes, as in `serveConfigV2`."""
        self._ask("PUT", SERVE, config).raise_for_status()
        wait_until(lambda: self.status() == "RUNNING")

    def _ask(self, method: str, path: str, content: object = None) -> httpx.Response:
        return httpx.request(
            method,
            self._url + path,
            json=content,
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=60.0,
            trust_env=False,
        )
