"""Draft models follow one another: all of a configuration's, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry

from actors.drafts import DraftModelDescription
from actors.errors import ConfigError, ModelError, PeerError, PeerTimeout, UnavailableError
from actors.request_manager.ports import Draft, Drafter, DraftTask
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from cluster.config import Config, config_of, with_ssms
from cluster.draft_pool import DraftPool, Seat
from cluster.metrics import Metrics, Part
from cluster.observed import ObservedDrafter
from cluster.placement import Place, plan_placement

LLM_HASH = "the LLM served"
TASK = DraftTask(1, (1, 2), 1, SamplingParams(), 4, 4)
HANGS = "hangs"


def config(*paths: str) -> Config:
    """The first one has two replicas."""
    ssms = [{"path": path, "replicas": 2 - min(place, 1)} for place, path in enumerate(paths)]
    speculation = {"drafters": ["ssm"], "draft_deadline_ms": 20}
    return config_of({"ssms": ssms, "speculation": speculation})


class House:
    """The cluster: what it was told, in order, and who lives.

    Attributes:
        faults: by folder, what becomes of a start, or whose LLM a draft model was tuned for.
        lost: addresses of those that are being brought back.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.alive: list[FakeActors] = []
        self.faults: dict[str, Exception | str] = {}
        self.lost: set[str] = set()
        self.places: list[Place] = []
        self.anew: list[str] = []

    def hire(self, config: Config, seat: Seat, note: Callable[[bool], None]) -> FakeActors:
        self.places.append(seat.place)
        path = config.ssms[seat.index].path
        if path == "missing":
            raise ModelError("no config.json in missing")
        return FakeActors(self, f"{path}/{seat.part.replica}", note)

    def connect(
        self, address: str, respawn: Callable[[], Awaitable[str]], part: Part
    ) -> FakeClient:
        return FakeClient(self, address, respawn, part.drafter)

    def drafting(self) -> list[str]:
        """Who lives, by folder and replica."""
        return sorted(actors.name for actors in self.alive)


class FakeActors:
    def __init__(self, house: House, name: str, note: Callable[[bool], None]) -> None:
        self.name = name
        self.note = note
        self.metrics_addresses: list[str] = []
        self._house = house

    async def start(self) -> list[str]:
        fault = self._house.faults.get(self.name)
        if isinstance(fault, Exception):
            raise fault
        if fault == HANGS:
            await asyncio.Event().wait()
        self._house.events.append(f"start {self.name}")
        self._house.alive.append(self)
        self.metrics_addresses = [f"metrics of {self.name}"]
        self.note(True)
        return [self.name]

    async def restart(self) -> list[str]:
        self.note(False)
        self.kill()
        return await self.start()

    def kill(self) -> None:
        self.metrics_addresses = []
        if self in self._house.alive:
            self._house.alive.remove(self)
            self._house.events.append(f"kill {self.name}")


class FakeClient:
    def __init__(
        self, house: House, address: str, respawn: Callable[[], Awaitable[str]], name: str
    ) -> None:
        self.name = name
        self.address = address
        self.respawn = respawn
        self.answer = asyncio.Event()
        self.answer.set()
        self._house = house
        self._is_closed = False

    @property
    def is_away(self) -> bool:
        return self.address in self._house.lost

    async def describe(self) -> DraftModelDescription:
        fault = self._house.faults.get(self.address, LLM_HASH)
        return DraftModelDescription("d", 100, str(fault), 1, 1)

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        self._house.events.append(f"ask {self.address}")
        await self.answer.wait()
        assert not self._is_closed
        return {task.request_id: Draft(TokenTree.chain([5]), (0.5,)) for task in tasks}

    def forget(self, request_id: int) -> None: ...

    async def close(self) -> None:
        self._is_closed = True
        self._house.events.append(f"close {self.address}")


class Running:
    """A pool that has been started."""

    def __init__(self, *paths: str) -> None:
        self.house = House()
        self.config = config(*paths)
        self.metrics = Metrics(CollectorRegistry(), "m", self.config.drafter_names)
        self.clients: list[FakeClient] = []
        self.pool = DraftPool(
            self.config,
            plan_placement(self.config).ssm_places,
            self.house.hire,
            self._connect,
            self.metrics.part_is_up,
        )
        self.drafters: list[ObservedDrafter] = []

    def _connect(
        self, address: str, respawn: Callable[[], Awaitable[str]], part: Part
    ) -> FakeClient:
        self.clients.append(self.house.connect(address, respawn, part))
        return self.clients[-1]

    def _observe(self, drafter: Drafter) -> ObservedDrafter:
        return ObservedDrafter(drafter, self.metrics)

    async def start(self) -> Running:
        await self.pool.start()
        self.drafters = await self.pool.open(LLM_HASH, self._observe)
        self.house.events.clear()
        return self

    async def swap(self, *paths: str) -> None:
        await self.pool.swap(config(*paths).ssms, self.house.anew.append)

    async def asked(self) -> list[str]:
        """Who answers, when each drafter is asked."""
        self.house.events.clear()
        for drafter in self.drafters:
            assert TASK.request_id in await drafter.draft([TASK])
        return [event.removeprefix("ask ") for event in self.house.events]

    def parts(self) -> dict[str, str]:
        """What `/metrics` says of the actors, up and failures, by drafter and replica."""
        found = {}
        for line in self.metrics.text().splitlines():
            if line.startswith("treeserve_part_") and "DraftModel" in line:
                labels, _, value = line.partition("} ")
                name, _, rest = labels.partition("{drafter=")
                if not name.endswith("_created"):
                    drafter, index = rest.split('"')[1], rest.split('"')[3]
                    found[f"{name.removeprefix('treeserve_part_')} {drafter} {index}"] = value
        return found


OLD = ["a/0", "a/1", "b/0"]
NEW = ["c/0", "c/1", "d/0"]


async def test_all_are_loaded_before_the_first_takes_over_and_then_one_follows_another() -> None:
    running = await Running("a", "b").start()
    assert running.house.drafting() == await running.asked() == OLD
    running.house.events.clear()
    await running.swap("c", "d")
    takeover = [step for pair in zip(OLD, OLD, strict=True) for step in pair]
    assert running.house.events == [
        *(f"start {name}" for name in NEW),
        *(
            f"{deed} {name}"
            for name, deed in zip(takeover, ("close", "kill") * len(OLD), strict=True)
        ),
    ]
    assert running.house.drafting() == await running.asked() == NEW
    assert running.house.anew == ["ssm-0", "ssm-1"]


async def test_successors_share_the_bundles_and_take_nothing_of_them() -> None:
    running = await Running("a", "b").start()
    first = list(running.house.places)
    await running.swap("c", "d")
    assert running.house.places[3:] == [Place(place.bundle, {}) for place in first]


async def test_the_same_folders_rewritten_are_loaded_too() -> None:
    running = await Running("a", "b").start()
    await running.swap("a", "b")
    await running.swap("a", "b")
    assert running.house.drafting() == await running.asked() == OLD
    assert len(running.clients) == 9


async def test_an_answer_that_is_waited_for_still_comes() -> None:
    running = await Running("a").start()
    running.clients[0].answer.clear()
    asked = asyncio.create_task(running.drafters[0].draft([TASK]))
    await asyncio.sleep(0)
    swapping = asyncio.create_task(running.swap("c"))
    while "start c/1" not in running.house.events:
        await asyncio.sleep(0)
    running.clients[0].answer.set()
    assert TASK.request_id in await asked
    await swapping


BAD = [
    ("missing", None, "ssms.1 (missing): no config.json in missing", ModelError),
    ("d", ModelError("weights are not finite"), "ssms.1 (d): weights are not fin", ModelError),
    ("d", "another LLM", "ssms.1 (d): it was tuned for another LLM", ModelError),
    ("d", PeerTimeout("has not started"), "ssms.1 (d): has not started", PeerError),
]


@pytest.mark.parametrize(("path", "fault", "message", "kind"), BAD)
async def test_one_that_is_bad_changes_nothing(
    path: str, fault: Exception | str | None, message: str, kind: type[Exception]
) -> None:
    running = await Running("a", "b").start()
    before = running.pool.targets()
    if fault is not None:
        running.house.faults["d/0"] = fault
    with pytest.raises(kind) as caught:
        await running.swap("c", path)
    assert str(caught.value).startswith(message)
    assert running.house.drafting() == await running.asked() == OLD
    assert running.pool.targets() == before
    assert running.house.anew == []
    running.house.faults.clear()
    await running.swap("c", "d")
    assert running.house.drafting() == NEW


SHAPES = [
    ({"path": "c", "replicas": 3}, "ssms.0.replicas: 3 instead of 2 needs a restart"),
    ({"path": "c", "replicas": 2, "num_threads": 2}, "ssms.0.num_threads: 2 instead of 1"),
    (None, "ssms: 0 instead of 1 need a restart"),
]


@pytest.mark.parametrize(("ssm", "message"), SHAPES)
async def test_others_than_there_is_room_for_are_refused(
    ssm: dict[str, object] | None, message: str
) -> None:
    running = await Running("a").start()
    asked = config_of({"ssms": [ssm], "speculation": {"drafters": ["ssm"]}}).ssms if ssm else ()
    with pytest.raises(ConfigError, match=message):
        await running.pool.swap(asked, running.house.anew.append)
    assert running.house.events == []


async def test_where_there_are_no_draft_models_none_can_follow() -> None:
    pool = DraftPool(Config(), [], House().hire, House().connect, lambda part, is_up: None)
    with pytest.raises(ConfigError, match="without draft models"):
        await pool.swap(config("c").ssms, lambda name: None)


async def test_limits_may_change_with_the_weights() -> None:
    running = await Running("a").start()
    (ssm,) = running.config.ssms
    changed = ssm.model_copy(update={"max_nodes": 3, "kv_memory_bytes": 1 << 21})
    await running.pool.swap([changed], running.house.anew.append)
    assert running.house.drafting() == ["a/0", "a/1"]


async def test_only_who_is_asked_counts_as_up_or_failed() -> None:
    running = await Running("a").start()
    first = running.house.alive[0]
    await running.clients[0].respawn()
    assert running.parts()["failures_total ssm 0"] == "1.0"
    await running.swap("c")
    first.note(False)
    assert running.parts() == {
        "up ssm 0": "1.0",
        "up ssm 1": "1.0",
        "failures_total ssm 0": "1.0",
        "failures_total ssm 1": "0.0",
    }
    await running.clients[-1].respawn()
    assert running.parts()["failures_total ssm 1"] == "1.0"
    labels = [(target.address, target.labels["index"]) for target in running.pool.targets()]
    assert labels == [("metrics of c/0", "0"), ("metrics of c/1", "1")]


async def test_a_successor_that_is_lost_before_it_takes_over_counts_as_failed() -> None:
    running = await Running("a").start()
    running.house.lost.add("c/0")
    await running.swap("c")
    assert running.parts()["up ssm 0"] == "0.0"
    assert running.parts()["failures_total ssm 0"] == "1.0"
    assert running.parts()["up ssm 1"] == "1.0"


async def test_one_exchange_at_a_time() -> None:
    running = await Running("a").start()
    running.house.faults["c/0"] = HANGS
    first = asyncio.create_task(running.swap("c"))
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="already"):
        await running.swap("d")
    await running.pool.close()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert running.house.drafting() == []


async def test_who_asked_may_go_and_the_exchange_goes_on() -> None:
    running = await Running("a").start()
    asked = asyncio.create_task(running.swap("c"))
    while "start c/1" not in running.house.events:
        await asyncio.sleep(0)
    asked.cancel()
    while running.house.drafting() != ["c/0", "c/1"]:
        await asyncio.sleep(0)
    await running.pool.close()
    assert running.house.drafting() == []


async def test_what_closes_in_the_middle_leaves_nothing() -> None:
    running = await Running("a").start()
    swapping = asyncio.create_task(running.swap("c"))
    while "start c/1" not in running.house.events:
        await asyncio.sleep(0)
    await running.pool.close()
    assert running.house.drafting() == []
    with pytest.raises(asyncio.CancelledError):
        await swapping


def test_with_ssms_changes_nothing_else() -> None:
    before = config("a", "b")
    after = with_ssms(before, config("c", "d").ssms)
    assert after == before.model_copy(update={"ssms": config("c", "d").ssms})
