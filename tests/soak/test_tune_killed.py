"""`treeserve tune` whose worker is killed, and then the whole command, makes the same pool."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.processes import descendants
from tests.tune_runs import TuneRuns

STEPS = 150
PATIENCE_S = 300.0


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.05)


@contextmanager
def running(runs: TuneRuns, out: str) -> Iterator[subprocess.Popen[bytes]]:
    process = runs.start(out, "--workers", "2")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def workers_of(pid: int) -> dict[int, psutil.Process]:
    return {process.pid: process for process in descendants("TrainingWorker", pid)}


def test_killed_and_resumed_it_gives_the_same_pool(tmp_path: Path) -> None:
    runs = TuneRuns(tmp_path, STEPS)

    def step(name: str) -> int:
        return int(runs.progress("killed", name)["step"])

    with running(runs, "whole") as command:
        assert command.wait(PATIENCE_S) == 0
    with running(runs, "killed") as command:
        wait_until(lambda: 0 < step("ssm-0") < STEPS)
        victims = workers_of(command.pid)
        assert len(victims) == 2
        victims[max(victims)].kill()
        reached = step("ssm-0")
        wait_until(lambda: step("ssm-0") > reached)
        assert not victims.keys() & workers_of(command.pid).keys(), "the group started again"
        wait_until(lambda: step("ssm-1") > 0)
        left = psutil.Process(command.pid).children(recursive=True)
        os.kill(command.pid, signal.SIGKILL)
        command.wait()
        assert 0 < step("ssm-1") < STEPS
        _, alive = psutil.wait_procs(left, PATIENCE_S)
        assert not alive, "its cluster ends with it"
    with running(runs, "killed") as command:
        assert command.wait(PATIENCE_S) == 0
    assert runs.weights("killed") == runs.weights("whole")
