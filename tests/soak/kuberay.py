"""The cluster that KubeRay makes of the overlay `ha`, as processes of this machine.

Redis, a head and a worker with the arguments that the manifests give them, what KubeRay sets for
them besides, and the application of the same manifests, put to the dashboard as the operator does.
Needs `redis-server` (Debian's package redis-server). What differs: everything is on loopback, on
ports that are free, and the LLM has one thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml
from dashboard import Dashboard, wait_until

from cluster.bench.server import free_port
from tests.unit.k8s.render import OVERLAYS, render

IS_POSSIBLE = shutil.which("redis-server") is not None
RAY = str(Path(sys.executable).with_name("ray"))
MARK = "TREESERVE_TEST_MARK"
WORKER_RECONNECT_S = "600"
"""How long KubeRay has a worker wait for its head; the head itself has Ray's own minute."""
GCS = "/gcs_server "
END_S = 120.0
"""For a head that ends because a daemon of it has died."""


class KubeRay:
    """Every process of it carries a mark in its environment.

    Attributes:
        key: what the server's API asks for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = secrets.token_hex(8)
        self._token, self._password = secrets.token_hex(32), secrets.token_hex(24)
        self._namespace = secrets.token_hex(8)
        self._gcs, self._dashboard, self._redis = free_port(), free_port(), free_port()
        self._head: subprocess.Popen[bytes] | None = None
        manifests = {
            (one["kind"], one["metadata"]["name"]): one.get("spec")
            for one in render(OVERLAYS / "ha")
        }
        self._redis_pod = manifests["StatefulSet", "treeserve-redis"]["template"]["spec"]
        self._service = manifests["RayService", "treeserve"]
        self.key = secrets.token_hex(24)
        self.url = f"http://127.0.0.1:{free_port()}"
        self.dashboard = Dashboard(f"127.0.0.1:{self._dashboard}", self._token)

    def start(self, *, is_watched: bool = True) -> None:
        """With the application.

        Args:
            is_watched: as in a container, the head ends as soon as one of its daemons does.
        """
        self.start_redis()
        self.start_head(is_watched=is_watched)
        self._ray(
            self._service["rayClusterConfig"]["workerGroupSpecs"][0],
            *("--block", "--address", f"127.0.0.1:{self._gcs}"),
            RAY_gcs_rpc_server_reconnect_timeout_s=WORKER_RECONNECT_S,
        )
        self.dashboard.put_all(self._serve_config())

    def start_redis(self) -> None:
        arguments = [
            argument.replace("$(PASSWORD)", self._password)
            for argument in self._redis_pod["containers"][0]["args"]
        ]
        here = ("--port", str(self._redis), "--bind", "127.0.0.1", "--dir", str(self._folder))
        # With a title of its own it would write over its environment, and so over the mark.
        self._run("redis-server", *arguments, *here, "--set-proc-title", "no")

    def start_head(self, *, is_watched: bool = True) -> None:
        """The head's pod: the first, or the next with what Redis has kept."""
        head = self._head_container(is_watched)

        def is_up() -> bool:
            nonlocal head
            if head.poll():  # kubelet starts again what has failed, as on a machine that is busy
                self._end_group(head)
                head = self._head_container(is_watched)
            return self.dashboard.answers()

        wait_until(is_up)
        self._head = head

    def kill_head(self) -> None:
        """Everything that the head's pod would hold; the worker's processes are left alone."""
        assert self._head is not None
        self._end_group(self._head)

    def end_head(self) -> None:
        """Wait until the head's container ends by itself, with all that is in it."""
        assert self._head is not None
        self._head.wait(END_S)
        self._end_group(self._head)

    def _end_group(self, leader: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()

    def kill(self, title: str) -> psutil.Process:
        """The one process with such a title."""
        (victim,) = self.processes(title)
        victim.kill()
        wait_until(lambda: victim not in self.processes(title))
        return victim

    def restart_gcs(self) -> None:
        """Kill the GCS alone and start it again as it was."""
        (gcs,) = self.processes(GCS)
        command, environment = gcs.cmdline(), gcs.environ()
        self.kill(GCS)
        self._run(*command, **environment)

    def processes(self, title: str = "") -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                marked = process.environ().get(MARK) == self._mark
                if marked and title in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def stop(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _serve_config(self) -> dict[str, Any]:
        keys = self._folder / "keys"
        keys.write_text(self.key)
        config: dict[str, Any] = yaml.safe_load(self._service["serveConfigV2"])
        (application,) = config["applications"]
        arguments = application["args"]
        host, port = self.url.removeprefix("http://").split(":")
        arguments["api"] |= {"host": host, "port": int(port), "api_keys_file": str(keys)}
        arguments["metrics"] = {}
        arguments["llm"]["num_threads"] = 1
        return config

    def _head_container(self, is_watched: bool) -> subprocess.Popen[bytes]:
        ports = ("--dashboard-port", str(self._dashboard), "--ray-client-server-port")
        return self._ray(
            self._service["rayClusterConfig"]["headGroupSpec"],
            *(("--block",) if is_watched else ()),
            *("--head", "--port", str(self._gcs), *ports, str(free_port())),
            *("--redis-password", self._password),
            RAY_REDIS_ADDRESS=f"127.0.0.1:{self._redis}",
            RAY_external_storage_namespace=self._namespace,
        )

    def _ray(
        self, group: dict[str, Any], *arguments: str, **environment: str
    ) -> subprocess.Popen[bytes]:
        parameters = group["rayStartParams"] | {"node-ip-address": "127.0.0.1"}
        if "dashboard-host" in parameters:
            parameters["dashboard-host"] = "127.0.0.1"
        own = {
            "dashboard-agent-listen-port": str(free_port()),
            "temp-dir": tempfile.mkdtemp(dir=self._folder),  # as each pod has its own
        }
        options = [f"--{name}={value}" for name, value in (parameters | own).items()]
        return self._run(RAY, "start", *arguments, *options, **environment)

    def _run(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        own = {
            MARK: self._mark,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # its word for several nodes
            "OMP_NUM_THREADS": "1",
        }
        log = (self._folder / f"{Path(command[0]).name}.log").open("ab")
        with log:
            return subprocess.Popen(
                command,
                env=os.environ | own | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@contextlib.contextmanager
def kuberay() -> Iterator[KubeRay]:
    """Nothing of it is started yet; all of it is ended at the end."""
    folder = Path("/tmp") / f"treeserve-{secrets.token_hex(4)}"  # paths of sockets are short
    folder.mkdir()
    cluster = KubeRay(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
