"""Ray's daemons that this process has started, as Linux sees them. Knows no Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import psutil

NAMES = ("gcs_server", "raylet")
"""Of those without which there is no cluster."""


def are_alive() -> bool:
    """True while all of them run."""
    names = set()
    for daemon in _daemons():
        with contextlib.suppress(psutil.NoSuchProcess):
            names.add(daemon.name())
    return names.issuperset(NAMES)


def processes() -> list[psutil.Process]:
    """The daemons and Ray's workers, which are their children."""
    found = []
    for daemon in _daemons():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [daemon, *daemon.children(recursive=True)]
    return found


def end(ending: Sequence[psutil.Process], grace_s: float) -> None:
    """Wait until processes have ended; kill what has not by then."""
    _, alive = psutil.wait_procs(ending, timeout=grace_s)
    kill(alive)


def kill(running: Sequence[psutil.Process]) -> None:
    """End processes at once."""
    for process in running:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _daemons() -> list[psutil.Process]:
    """Those that live; they are our children."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            is_dead = child.status() == psutil.STATUS_ZOMBIE
            if not is_dead and any("/ray/" in part for part in child.cmdline()):
                found.append(child)
    return found
