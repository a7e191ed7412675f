"""Ranks are started together, and replaced together; where they listen, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from actors.errors import ModelError, PeerTimeout, PeerUnavailable
from actors.llm.config import LLMConfig
from cluster import ray_actors, ray_api, supervisor
from cluster.config import Config
from cluster.placement import Place, plan_placement
from cluster.ray_api import Node
from cluster.supervisor import ActorGroup, listening_host

HANGS = object()
HERE, THERE, ELSEWHERE = (Node(f"node {n}", f"10.0.0.{n}") for n in (1, 2, 3))
DEAD = Node("a node that Ray does not know to be dead", "10.0.0.4")


class FakeProcess:
    """Stands for a rank's process; its body is the address, or the error of its start."""

    made: list[FakeProcess]
    nodes: list[Node]

    def __init__(
        self, name: str, make: object, resources: Mapping[str, float], group: object, bundle: int
    ) -> None:
        self.name, self.make = name, make
        self.bundle, self.resources = bundle, resources
        self.alive = True
        self.meeting_place: str | None = None
        self.hosts: list[str] = []
        self.at = self.nodes[len(self.made) % len(self.nodes)]
        self.made.append(self)

    async def node(self) -> Node:
        if self.at is DEAD:
            raise PeerUnavailable("an actor died")
        return self.at

    async def open_meeting(self, host: str) -> str:
        self.hosts.append(host)
        return f"meeting of {len(self.made)}"

    async def start(self, host: str, meeting_place: str | None) -> ray_actors.Addresses:
        self.hosts.append(host)
        self.meeting_place = meeting_place
        outcome = self.make()  # type: ignore[operator]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is HANGS:
            await asyncio.Event().wait()
        return ray_actors.Addresses(f"{outcome}:{len(self.made)}", f"{outcome}:9{len(self.made)}")

    def kill(self) -> None:
        self.alive = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    processes: list[FakeProcess] = []
    monkeypatch.setattr(FakeProcess, "made", processes, raising=False)
    monkeypatch.setattr(FakeProcess, "nodes", [HERE], raising=False)
    monkeypatch.setattr(ray_actors, "ActorProcess", FakeProcess)
    monkeypatch.setattr(ray_api, "own_node", lambda: HERE)
    return processes


class FakeReservation:
    """Stands for a placement group of which every bundle has a node, or one that cannot have one,
    or one that has none because others take the room."""

    def __init__(self, state: str, places: Sequence[Place]) -> None:
        self._state = state
        self.places = places

    def has_nodes(self, bundles: set[int]) -> bool:
        assert bundles == {place.bundle for place in self.places}
        if self._state == "no room":
            raise PeerUnavailable("the cluster has no room: LLM stage 1")
        return self._state == "whole"


def group(
    *outcomes: object,
    start_timeout_s: float = 20.0,
    notes: list[object] | None = None,
    state: str = "whole",
) -> ActorGroup:
    llm = LLMConfig(pipeline_parallel=len(outcomes))
    places = plan_placement(Config(llm=llm)).rank_places
    makers = [lambda outcome=outcome: outcome for outcome in outcomes]

    def note(is_up: bool) -> None:
        if notes is not None:
            notes.append(is_up)

    reservation = FakeReservation(state, places)
    return ActorGroup("ranks", makers, places, reservation, start_timeout_s, note)  # type: ignore[arg-type]


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


def test_loopback_is_for_those_that_are_all_beside_a_process() -> None:
    assert listening_host(HERE, [HERE, HERE]) == "127.0.0.1"
    assert listening_host(THERE, [HERE]) == "10.0.0.2"
    assert listening_host(HERE, [HERE, THERE]) == "10.0.0.1"


async def test_processes_beside_the_manager_are_reached_by_nobody_else(
    made: list[FakeProcess],
) -> None:
    await group("first", "second").start()
    assert [process.hosts for process in made] == [["127.0.0.1", "127.0.0.1"], ["127.0.0.1"]]


async def test_processes_of_several_nodes_meet_and_serve_at_their_nodes_addresses(
    made: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProcess, "nodes", [HERE, THERE, ELSEWHERE])
    await group("first", "second", "third").start()
    assert [process.hosts for process in made] == [
        ["10.0.0.1", "127.0.0.1"],
        ["10.0.0.2"],
        ["10.0.0.3"],
    ]


async def test_a_group_of_one_other_node_meets_on_loopback(
    made: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProcess, "nodes", [THERE])
    await group("first", "second").start()
    assert [process.hosts for process in made] == [["127.0.0.1", "10.0.0.2"], ["10.0.0.2"]]


async def test_a_start_that_loses_its_room_says_what_is_missing(made: list[FakeProcess]) -> None:
    with pytest.raises(PeerUnavailable, match="no room: LLM stage 1"):
        await group("first", HANGS, state="no room").start()
    assert [process.alive for process in made] == [False, False]


async def test_a_start_waits_some_time_for_room_that_others_use(
    made: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await group("host", state="taken").start() == ["host:1"]
    monkeypatch.setattr(supervisor, "ROOM_TIMEOUT_S", -1.0)
    with pytest.raises(PeerUnavailable, match="others use"):
        await group("first", HANGS, state="taken").start()
    assert [process.alive for process in made] == [True, False, False]


async def test_a_node_that_turns_out_to_be_dead_is_left(
    made: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProcess, "nodes", [HERE, DEAD, HERE, THERE])
    assert await group("first", "second").start() == ["first:4", "second:4"]
    assert [process.alive for process in made] == [False, False, True, True]


async def test_nodes_that_all_turn_out_to_be_dead_are_told(
    made: list[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeProcess, "nodes", [DEAD])
    with pytest.raises(PeerUnavailable, match="an actor died"):
        await group("first").start()
    assert [process.alive for process in made] == [False] * 3
