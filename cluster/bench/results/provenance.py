"""On what a section was measured: commit, machine, versions, how busy the machine was."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("torch", "transformers", "ray")
QUIET_LOAD = 1.0
"""Reading the prompts before is part of it."""
CPU_INFO = Path("/proc/cpuinfo")
ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Provenance:
    """See above.

    Attributes:
        commit: of the code, and whether it was changed since.
        machine: processor, cores and versions, in words.
        load: how many processes wanted to run in the minute before.
    """

    commit: str
    machine: str
    load: float

    @classmethod
    def now(cls, document: Path) -> Provenance:
        """Of a run that begins.

        Args:
            document: where its results go; a change of that does not count.
        """
        return cls(_commit(document), _machine(), os.getloadavg()[0])

    def __str__(self) -> str:
        note = " (**others computed too: times tell little**)" if self.load > QUIET_LOAD else ""
        return f"Commit {self.commit}; {self.machine}; load {self.load:.1f} at the beginning{note};"


def _commit(document: Path) -> str:
    found = _git("rev-parse", "--short=12", "HEAD")
    if found is None:
        return "unknown"
    spec = ["--", "."]
    if document.resolve().is_relative_to(ROOT):
        spec.append(f":(exclude){document.resolve().relative_to(ROOT)}")
    changed = _git("status", "--porcelain", "--untracked-files=no", *spec)
    return f"{found} with changes" if changed else found


def _machine() -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    cores = len(os.sched_getaffinity(0))
    cpu = cpu_name(CPU_INFO.read_text() if CPU_INFO.is_file() else "")
    return f"{cpu}, {cores} cores, Python {platform.python_version()}, {versions}"


def cpu_name(cpu_info: str) -> str:
    """Out of Linux's description of its processors."""
    names = [line.partition(":")[2] for line in cpu_info.splitlines() if "model name" in line]
    return names[0].strip() if names else platform.machine()


def _git(*arguments: str) -> str | None:
    """What git says here; None where there is none, or no repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
