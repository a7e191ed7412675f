"""Which managers an ingress has a session with, and which of them gets a request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from actors.errors import PeerUnavailable, TreeServeError, UnavailableError
from actors.request_manager.generation import GenerationRequest, StopConditions
from actors.request_manager.outbox import Outbox
from actors.sampling import SamplingParams
from deploy import manager_link
from deploy.backend import BackendDescription
from deploy.manager_link import Manager, ManagerLink, Transport
from deploy.session import Batch, Group

SERVED = BackendDescription("m", 100, 300)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_link, "ROLL_CALL_S", 0.0)


def to_ours(error: Exception) -> TreeServeError:
    return PeerUnavailable(str(error))


def request(name: str) -> GenerationRequest:
    return GenerationRequest(name, (1, 2), SamplingParams(seed=3), StopConditions(9))


class Crowd:
    """Managers that take everything and never answer."""

    def __init__(self, *present: Manager) -> None:
        self.present: list[Manager | None] = list(present)
        self.asked: list[str] = []
        self.death = asyncio.Event()
        self.problems: list[BaseException] = []

    async def roll_call(self) -> list[Manager | None]:
        await asyncio.sleep(0)
        if self.problems:
            raise self.problems.pop()
        return list(self.present)

    def events(self, manager_id: str, session_id: str) -> Silence:
        return Silence(self.death, manager_id != "never open")

    async def exchange(
        self, manager_id: str, session_id: str, groups: Sequence[Group], cancelled: Sequence[str]
    ) -> list[TreeServeError | None]:
        self.asked += [manager_id] * len(groups)
        return [None] * len(groups)

    @asynccontextmanager
    async def link(self) -> AsyncIterator[ManagerLink]:
        transport = Transport(self.roll_call, self.events, self.exchange, (), to_ours)
        link = ManagerLink(transport, "c")
        yield link
        await link.close(UnavailableError("over"))


class Silence:
    def __init__(self, death: asyncio.Event, is_open: bool) -> None:
        self._death = death
        self._is_open = is_open

    async def __aiter__(self) -> AsyncIterator[Batch]:
        if self._is_open:
            yield {}
        await self._death.wait()

    def cancel(self) -> None:
        pass


def named(name: str, configuration: str = "c", **served: object) -> Manager:
    return Manager(name, configuration, replace(SERVED, **served))  # type: ignore[arg-type]


async def breathe() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_of_several_managers_the_one_with_the_fewest_requests_is_asked() -> None:
    crowd = Crowd(named("a"), named("b"), named("c"))
    async with crowd.link() as link:
        await link.start(20.0)
        await breathe()
        for number in range(6):
            await (await link.session(0.0)).submit([request(str(number))], Outbox())
        assert Counter(crowd.asked) == {"a": 2, "b": 2, "c": 2}


async def test_an_ingress_begins_with_a_manager_of_its_own_configuration() -> None:
    crowd = Crowd(named("old", "before", dtype="float32"))
    async with crowd.link() as link:
        starting = asyncio.create_task(link.start(20.0))
        await breathe()
        assert not starting.done()
        crowd.present.append(named("new", dtype="bfloat16"))
        assert (await starting).dtype == "bfloat16"
        crowd.present.append(named("newer", "after", dtype="bfloat16", max_tree_nodes=1))
        await breathe()
        assert {manager.id for manager in link.managers} == {"new", "newer"}, "the same weights"


async def test_a_manager_that_is_only_slow_to_answer_is_kept() -> None:
    crowd = Crowd(named("a"), named("b"))
    async with crowd.link() as link:
        await link.start(20.0)
        await breathe()
        crowd.present[1] = None
        await breathe()
        assert {manager.id for manager in link.managers} == {"a", "b"}
        del crowd.present[1]
        await breathe()
        assert {manager.id for manager in link.managers} == {"a"}


async def test_only_a_manager_that_was_stopped_on_purpose_is_waited_for() -> None:
    crowd = Crowd(named("a"))
    async with crowd.link() as link:
        await link.start(20.0)
        crowd.present = []
        await breathe()
        assert link.is_being_replaced
        with pytest.raises(UnavailableError, match="another one is being started"):
            await link.session(0.0)
        crowd.present = [named("b")]
        await breathe()
        assert not link.is_being_replaced
        crowd.present = [None]
        crowd.death.set()
        await breathe()
        crowd.present = []
        await breathe()
        assert not link.managers
        assert not link.is_being_replaced


@pytest.mark.parametrize("problem", [RuntimeError("closed"), asyncio.CancelledError()])
async def test_after_a_roll_call_that_failed_there_is_another(problem: BaseException) -> None:
    crowd = Crowd(named("a"))
    async with crowd.link() as link:
        await link.start(20.0)
        crowd.problems = [problem, problem]
        crowd.present = [named("b")]
        await breathe()
        assert {manager.id for manager in link.managers} == {"b"}


async def test_a_session_that_never_opened_ends_with_its_manager() -> None:
    crowd = Crowd(named("a"), named("never open"))
    async with crowd.link() as link:
        await link.start(20.0)
        await breathe()
        assert link._running.keys() == {"a", "never open"}
        del crowd.present[1]
        await breathe()
        assert link._running.keys() == {"a"}
        assert not link.is_being_replaced
