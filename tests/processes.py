"""The processes that a test has started, by their titles."""

from __future__ import annotations

import contextlib

import psutil


def descendants(title: str, root: int | None = None) -> list[psutil.Process]:
    """Processes whose command line has `title` in it, below `root`; None: below this one."""
    found = []
    for process in psutil.Process(root).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if title in " ".join(process.cmdline()):
                found.append(process)
    return found
