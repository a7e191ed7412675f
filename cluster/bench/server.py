"""A server of one's own for the length of a measurement: the real command in a process apart."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import yaml

from actors.errors import PeerUnavailable, UnavailableError
from cluster.config import Config

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0
PORTS = range(20_000, 32_768)
"""Between those that Ray gives its workers and those that Linux gives whoever asks for any."""


def free_port() -> int:
    """A port of the loopback address that nobody listens on now, nor is soon given to.

    Raises:
        UnavailableError: there is none.
    """
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise UnavailableError(f"no port of {PORTS.start} to {PORTS.stop - 1} is free")


@contextmanager
def running_server(config: Path, log: Path) -> Iterator[str]:
    """`treeserve serve` on a free port; yields its base URL when it is ready, stops it after.

    Args:
        config: configuration file.
        log: where its output goes.

    Raises:
        PeerUnavailable: it did not become ready; the end of its output is in the message.
    """
    port = free_port()
    command = [sys.executable, "-m", "cluster.cli", "serve", str(config), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process, log)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def server_of(config: Config) -> Iterator[str]:
    """As `running_server`, for a configuration that stands in no file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
        with running_server(file, Path(folder) / "server.log") as url:
            yield url


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/ready", timeout=30.0).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    tail = log.read_text(errors="replace")[-2000:]
    raise PeerUnavailable(f"the server did not become ready:\n{tail}")
