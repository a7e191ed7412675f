"""Several hosts on one machine: network namespaces on a bridge, each with an address of its own.

Needs root and iproute2. This machine is on the bridge too, so it reaches every host. What a test
leaves behind because it was killed is removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

NAME = re.compile(r"ts(\d+)(-\d+)?")
"""Of namespaces and interfaces: our process, and which host of it."""

IS_POSSIBLE = os.geteuid() == 0 and shutil.which("ip") is not None
END_S = 5.0


class Host:
    """One namespace.

    Attributes:
        name: of the namespace, and of its interface's other end on the bridge.
        address: of its one interface beside loopback.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a process on this host."""
        with log.open("ab") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                env=os.environ | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self, title: str = "") -> list[psutil.Process]:
        """What runs on this host and has `title` in its command line."""
        found = []
        for pid in _ip("netns", "pids", self.name).split():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(int(pid))
                if title in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def cut_off(self) -> None:
        """Its packets go nowhere from now on; nobody is told."""
        _ip("link", "set", self.name, "down")

    def kill(self) -> None:
        """End every process on it at once."""
        deadline = time.monotonic() + END_S
        while (running := self.processes()) and time.monotonic() < deadline:
            for process in running:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(running, timeout=1.0)


@contextlib.contextmanager
def several_hosts(number: int) -> Iterator[list[Host]]:
    """So many hosts; they and their processes are gone afterwards."""
    _sweep()
    bridge = f"ts{os.getpid()}"
    subnet = f"10.213.{os.getpid() % 256}"
    hosts = [Host(f"{bridge}-{n}", f"{subnet}.{10 + n}") for n in range(number)]
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("address", "add", f"{subnet}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for host in hosts:
            _add(host, bridge)
        yield hosts
    finally:
        for host in hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                host.kill()
        _remove(bridge, [host.name for host in hosts])


def _add(host: Host, bridge: str) -> None:
    _ip("netns", "add", host.name)
    peer = ("peer", "name", "eth0", "netns", host.name)
    _ip("link", "add", host.name, "type", "veth", *peer)
    _ip("link", "set", host.name, "master", bridge, "up")
    inside = ("-netns", host.name)
    _ip(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "link", "set", "eth0", "up")


def _sweep() -> None:
    """Remove what processes that live no more have left."""
    for line in _ip("netns", "list").splitlines():
        found = NAME.fullmatch(line.split()[0])
        if found and not psutil.pid_exists(int(found[1])):
            Host(found[0], "").kill()
            _remove(f"ts{found[1]}", [found[0]])


def _remove(bridge: str, names: Sequence[str]) -> None:
    """The bridge and hosts with such names, as far as they are there."""
    # Connections that were cut keep a namespace, and what is in it, for a while without a name.
    links = [("link", "delete", name) for name in (*names, bridge)]
    for arguments in [*links, *(("netns", "delete", name) for name in names)]:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip(*arguments)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
