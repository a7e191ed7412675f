"""`treeserve tune` in real processes: one and two workers, a killed worker, a killed command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from conftest import PATIENCE_S, wait_until
from safetensors import safe_open
from safetensors.torch import load_file

from cluster import tune_command
from cluster.cli import main
from tests.alone import train_alone
from tests.byte_llm import write_llm
from tests.processes import descendants

pytestmark = pytest.mark.integration
STEPS = 150
POOL = ("ssm-0", "ssm-1")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    llm = write_llm(folder / "llm")
    path = folder / "config.yaml"
    path.write_text(json.dumps({"model": {"path": str(llm)}, "llm": {"num_threads": 1}}))
    return path


def arguments(config: Path, out: str, *more: str) -> list[str]:
    words = f"tune {config} --out {config.parent / out} --own-prompts 40 --answer-tokens 16"
    words += f" --width 64 --layers 1 --ff 64 --cut 200 --steps {STEPS} --pool 2 --checkpoint-s 0"
    return [*words.split(), *more]


@pytest.fixture
def start(config: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the command; ends what is left of it."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(out: str, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cluster.cli", *arguments(config, out, *more)]
        running.append(subprocess.Popen(command))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def steps_done(config: Path, out: str, name: str) -> int:
    """Of a model's checkpoint; 0 without one."""
    path = config.parent / out / "work" / f"{name}.safetensors"
    if not path.is_file():
        return 0
    with safe_open(path, framework="pt") as content:
        return int(json.loads(content.metadata()["progress"])["step"])


def loss(checkpoint: Path) -> float:
    """Running mean at its end."""
    with safe_open(checkpoint, framework="pt") as content:
        return float(json.loads(content.metadata()["progress"])["loss"])


def weights(config: Path, out: str) -> list[bytes]:
    return [(config.parent / out / name / "model.safetensors").read_bytes() for name in POOL]


def test_killed_and_resumed_it_gives_the_same_pool(
    config: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    whole = start("whole", "--workers", "2")
    assert whole.wait(PATIENCE_S * 2) == 0

    killed = start("killed", "--workers", "2")
    wait_until(lambda: 0 < steps_done(config, "killed", "ssm-0") < STEPS)
    victims = descendants("TrainingWorker", killed.pid)
    assert len(victims) == 2
    victims[1].kill()
    reached = steps_done(config, "killed", "ssm-0")
    wait_until(lambda: steps_done(config, "killed", "ssm-0") > reached)
    assert not {one.pid for one in victims} & {
        one.pid for one in descendants("TrainingWorker", killed.pid)
    }, "the whole group was started again"
    wait_until(lambda: steps_done(config, "killed", "ssm-1") > 0)
    left = psutil.Process(killed.pid).children(recursive=True)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert 0 < steps_done(config, "killed", "ssm-1") < STEPS
    _, alive = psutil.wait_procs(left, PATIENCE_S)
    assert not alive, "its cluster ends with it"

    assert start("killed", "--workers", "2").wait(PATIENCE_S * 2) == 0
    assert weights(config, "killed") == weights(config, "whole")


def test_two_workers_learn_what_one_does_without_deepspeed(
    config: Path, start: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("--steps", "40")
    assert start("two", "--workers", "2", *few).wait(PATIENCE_S * 2) == 0
    monkeypatch.setattr(tune_command, "train", train_alone)
    assert main(arguments(config, "alone", *few)) == 0
    for name in POOL:
        files = [config.parent / out / "work" / f"{name}.safetensors" for out in ("alone", "two")]
        alone, two = map(load_file, files)
        for key, value in alone.items():
            if key.startswith("model."):
                away = (value.float() - two[key].float()).norm() / value.float().norm()
                # bfloat16 rounds other groups otherwise, and Muon makes as much of the
                # directions in which nearly nothing but rounding is left.
                assert away < 0.2, (name, key)
        assert loss(files[0]) == pytest.approx(loss(files[1]), rel=1e-3)
