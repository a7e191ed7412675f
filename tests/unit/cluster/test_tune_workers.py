"""Training in a group of workers: one that dies takes the group with it, and it starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from actors.errors import InputError, PeerError, PeerUnavailable
from actors.ssm.boost_tuning.lesson import Answers, Lesson
from actors.ssm.boost_tuning.recipe import Progress, Recipe
from cluster import ray_actors, ray_api, tune_workers
from cluster.tune_workers import Workers, train

DIED = PeerUnavailable("an actor died")


class FakeProcess:
    """Stands for a worker's process; what its calls answer is told by `script`."""

    made: list[FakeProcess]
    script: Callable[[int, int], Progress | Exception]
    """Of the number of the process and of the call."""

    def __init__(self, name: str, make: Any, resources: Mapping[str, float]) -> None:
        self.lesson, self.rank, self.number, self.device, self.num_threads = make.args
        self.resources = resources
        self.place: str | None = None
        self.num_calls = 0
        self.alive = True
        self.index = len(self.made)
        self.made.append(self)

    async def open_meeting(self, host: str) -> str:
        return f"{host} of {self.index}"

    async def make(self, place: str) -> None:
        self.place = place

    async def call(self, method: str, seconds: float) -> Progress:
        assert method == "advance" and seconds > 0
        outcome = type(self).script(self.index, self.num_calls)
        self.num_calls += 1
        if isinstance(outcome, Exception):
            if outcome is DIED:
                await asyncio.sleep(0)  # the others' complaints come first
            raise outcome
        return outcome

    def kill(self) -> None:
        self.alive = False


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    events: list[str] = []
    FakeProcess.made = []
    monkeypatch.setattr(ray_actors, "ActorProcess", FakeProcess)
    monkeypatch.setattr(ray_api, "start_cluster", lambda cpus: events.append(f"{cpus} CPUs"))
    monkeypatch.setattr(ray_api, "stop_cluster", lambda: events.append("stopped"))
    monkeypatch.setattr(ray_api, "num_gpus", lambda: 0)
    yield events
    assert events[-1] == "stopped"
    assert not any(process.alive for process in FakeProcess.made)


@pytest.fixture
def lesson(tmp_path: Path) -> Lesson:
    answers = Answers((tmp_path,), "hash", 0)
    return Lesson(tmp_path, answers, None, Recipe(), tmp_path / "checkpoint", 60.0, None)


def at(share: float) -> Progress:
    return Progress(step=int(100 * share), share=share)


def test_all_meet_and_go_on_to_the_end(lesson: Lesson, cluster: list[str]) -> None:
    FakeProcess.script = lambda _, call: at(0.5 + call / 2)
    shown: list[Progress] = []
    train(lesson, Workers(2, "auto", 3), shown.append)
    assert shown == [at(0.5), at(1.0)]
    assert cluster == ["2 CPUs", "stopped"]
    first, second = FakeProcess.made
    assert first.place == second.place == "127.0.0.1 of 0"
    assert (first.rank, second.rank, first.number) == (0, 1, 2)
    assert first.device.type == "cpu" and first.resources == {"CPU": 1}
    assert first.num_threads == 3


@pytest.mark.parametrize(
    ("number", "device", "wanted"),
    [
        (None, "auto", ["cuda"] * 2),
        (3, "auto", ["cpu"] * 3),
        (None, "cpu", ["cpu"]),
        (1, "cuda", ["cuda"]),
    ],
)
def test_each_gpu_has_a_worker(
    lesson: Lesson,
    monkeypatch: pytest.MonkeyPatch,
    number: int | None,
    device: str,
    wanted: list[str],
) -> None:
    monkeypatch.setattr(ray_api, "num_gpus", lambda: 2)
    FakeProcess.script = lambda *_: at(1.0)
    train(lesson, Workers(number, device, None), lambda _: None)
    assert [process.device.type for process in FakeProcess.made] == wanted


def test_gpus_that_are_asked_for_have_to_be_there(lesson: Lesson) -> None:
    with pytest.raises(InputError, match="1 workers on GPUs, of which there are 0"):
        train(lesson, Workers(None, "cuda", None), lambda _: None)


def test_a_death_starts_the_whole_group_again(lesson: Lesson) -> None:
    outcomes = {0: PeerError("its peer is gone"), 1: DIED}
    FakeProcess.script = lambda index, _: outcomes.get(index, at(1.0))
    shown: list[Progress] = []
    train(lesson, Workers(2, "auto", None), shown.append)
    assert shown == [at(1.0)]
    assert [process.rank for process in FakeProcess.made] == [0, 1, 0, 1]


def test_deaths_without_headway_end_it(lesson: Lesson) -> None:
    FakeProcess.script = lambda *_: DIED
    with pytest.raises(PeerUnavailable, match="died"):
        train(lesson, Workers(1, "auto", None), lambda _: None)
    assert len(FakeProcess.made) == tune_workers.NUM_TRIES


def test_a_mistake_is_not_tried_again(lesson: Lesson) -> None:
    FakeProcess.script = lambda *_: InputError("records of another LLM")
    with pytest.raises(InputError, match="another LLM"):
        train(lesson, Workers(1, "auto", None), lambda _: None)
    assert len(FakeProcess.made) == 1
