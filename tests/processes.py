"""The processes that a test has started, by their titles."""

from __future__ import annotations

import contextlib

import psutil


def descendants(title: str) -> list[psutil.Process]:
    """Processes below this one whose command line has `title` in it."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if title in " ".join(process.cmdline()):
                found.append(process)
    return found
