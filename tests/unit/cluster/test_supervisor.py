"""Ranks are started together, and replaced together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from actors.errors import ModelError, PeerTimeout
from actors.llm.config import LLMConfig
from cluster import ray_api
from cluster.config import Config
from cluster.placement import plan_placement
from cluster.supervisor import ActorGroup

HANGS = object()


class FakeProcess:
    """Stands for a rank's process; its body is the address, or the error of its start."""

    made: list[FakeProcess]

    def __init__(
        self, name: str, make: object, group: object, bundle: int, resources: Mapping[str, float]
    ) -> None:
        self.name, self.make = name, make
        self.bundle, self.resources = bundle, resources
        self.alive = True
        self.meeting_place: str | None = None
        self.made.append(self)

    async def open_meeting(self) -> str:
        return f"meeting of {len(self.made)}"

    async def start(self, meeting_place: str | None) -> ray_api.Addresses:
        self.meeting_place = meeting_place
        outcome = self.make()  # type: ignore[operator]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is HANGS:
            await asyncio.Event().wait()
        return ray_api.Addresses(f"{outcome}:{len(self.made)}", f"{outcome}:9{len(self.made)}")

    def kill(self) -> None:
        self.alive = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    processes: list[FakeProcess] = []
    monkeypatch.setattr(FakeProcess, "made", processes, raising=False)
    monkeypatch.setattr(ray_api, "ActorProcess", FakeProcess)
    return processes


def group(
    *outcomes: object, start_timeout_s: float = 20.0, notes: list[object] | None = None
) -> ActorGroup:
    llm = LLMConfig(pipeline_parallel=len(outcomes))
    places = plan_placement(Config(llm=llm)).rank_places
    makers = [lambda outcome=outcome: outcome for outcome in outcomes]

    def note(is_up: bool) -> None:
        if notes is not None:
            notes.append(is_up)

    return ActorGroup("ranks", makers, places, None, start_timeout_s, note)  # type: ignore[arg-type]


async def test_a_rank_starts_in_its_bundle(made: list[FakeProcess]) -> None:
    assert await group("host").start() == ["host:1"]
    assert (made[0].bundle, made[0].resources) == (1, {"CPU": 1})
    assert made[0].name == "ranks"


async def test_one_process_has_nobody_to_meet(made: list[FakeProcess]) -> None:
    await group("host").start()
    assert made[0].meeting_place is None


async def test_processes_of_a_group_meet_where_the_first_one_listens_anew_each_time(
    made: list[FakeProcess],
) -> None:
    ranks = group("first", "second")
    assert await ranks.start() == ["first:2", "second:2"]
    await ranks.restart()
    places = [process.meeting_place for process in made]
    assert places == ["meeting of 2", "meeting of 2", "meeting of 4", "meeting of 4"]


async def test_all_go_when_one_cannot_start(made: list[FakeProcess]) -> None:
    with pytest.raises(ModelError, match="damaged"):
        await group(HANGS, ModelError("damaged")).start()
    assert [process.alive for process in made] == [False, False]


async def test_a_restart_replaces_the_rank_in_the_same_bundle(made: list[FakeProcess]) -> None:
    notes: list[object] = []
    ranks = group("host", notes=notes)
    await ranks.start()
    assert await ranks.restart() == ["host:2"]
    assert ranks.metrics_addresses == ["host:92"]
    assert notes == [True, False, True]
    assert [process.alive for process in made] == [False, True]
    assert made[0].bundle == made[1].bundle
    assert made[0].resources == made[1].resources


async def test_a_rank_that_cannot_start_is_not_left_behind(made: list[FakeProcess]) -> None:
    notes: list[object] = []
    with pytest.raises(ModelError, match="damaged"):
        await group(ModelError("damaged"), notes=notes).start()
    assert notes == []
    assert [process.alive for process in made] == [False]


async def test_a_rank_that_hangs_at_its_start_is_given_up(made: list[FakeProcess]) -> None:
    with pytest.raises(PeerTimeout, match="ranks has not started within 0 s"):
        await group(HANGS, start_timeout_s=0.0).start()
    assert [process.alive for process in made] == [False]


async def test_killing_twice_does_nothing_more(made: list[FakeProcess]) -> None:
    ranks = group("host")
    await ranks.start()
    ranks.kill()
    ranks.kill()
    assert [process.alive for process in made] == [False]
