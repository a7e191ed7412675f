"""The ingress's way to the manager: over its death, and without a trace of the transport."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple

import pytest

from actors.errors import (
    ExpiredError,
    InputError,
    OverloadedError,
    PeerUnavailable,
    TreeServeError,
    UnavailableError,
)
from actors.messages import TopLogprobs
from actors.request_manager.generation import (
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    StopConditions,
    TokenLogprob,
)
from actors.request_manager.outbox import Sink
from actors.sampling import SamplingParams
from cluster.metrics_server import Target
from deploy import manager_link
from deploy.backend import BackendDescription
from deploy.manager_link import ManagerLink, Transport
from deploy.serve_backend import MAX_SUBMISSIONS, ServeBackend
from deploy.session import Batch, Group, Sessions


class TransportError(Exception):
    """Stands for whatever Serve raises."""


SERVED = BackendDescription("m", 100, 300)
LOST = TransportError("actor died")
REFUSALS = [InputError("bad", "prompt"), OverloadedError("full"), UnavailableError("draining")]
FIRST, SECOND = GenerationEvent((5, 6), 2), GenerationEvent((7,), 3)
LAST = GenerationEvent((8,), 4, finish_reason=FinishReason.STOP)
Script = Sequence[GenerationEvent | Exception | None]
"""None is a pause, in which everything that was put arrives."""


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_link, "ROLL_CALL_S", 0.0)


class Running(NamedTuple):
    """What such an engine has of a request."""

    asked: GenerationRequest


class ScriptedEngine:
    """Plays the next script for each request; an exception of the transport kills the manager."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def submit(self, asked: Sequence[tuple[GenerationRequest, Sink]]) -> list[Running]:
        scripts = [self._manager.scripts.pop(0) for _ in asked]
        self._manager.requests += [request for request, _ in asked]
        for script in scripts:
            if script and isinstance(script[0], TreeServeError):
                raise script[0]
        for (_, sink), script in zip(asked, scripts, strict=True):
            self._manager.play(sink, script)
        return [Running(request) for request, _ in asked]

    def cancel(self, request: Running) -> None:
        self._manager.cancelled.append(request.asked.request_id)


class Manager:
    """A manager and those that take its place, over a transport that can break."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.requests: list[GenerationRequest] = []
        self.cancelled: list[str] = []
        self.num_exchanges = 0
        self.is_present = True
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._new()

    def _new(self) -> None:
        self.id = f"manager-{next(self._numbers)}"
        self.sessions = Sessions(ScriptedEngine(self))  # type: ignore[arg-type]
        self._died = asyncio.Event()

    def play(self, sink: Sink, script: Script) -> None:
        async def run() -> None:
            for item in script:
                for _ in range(20 if item is None else 1):
                    await asyncio.sleep(0)
                if isinstance(item, TransportError):
                    self._died.set()
                elif item is not None:
                    sink.put(item)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def roll_call(self) -> list[manager_link.Manager | None]:
        await asyncio.sleep(0)
        return [manager_link.Manager(self.id, "c", SERVED)] if self.is_present else []

    async def exchange(
        self, manager_id: str, session_id: str, groups: Sequence[Group], cancelled: Sequence[str]
    ) -> list[TreeServeError | None]:
        self.num_exchanges += 1
        await asyncio.sleep(0)
        return self.sessions.exchange(session_id, groups, cancelled)

    def events(self, manager_id: str, session_id: str) -> Events:
        return Events(self, session_id)

    async def targets(self, manager_id: str) -> list[Target]:
        raise LOST

    async def metrics(self, manager_id: str) -> str:
        raise LOST

    @asynccontextmanager
    async def backend(
        self, timeout_s: float | None = None, restart_timeout_s: float = 20.0
    ) -> AsyncIterator[ServeBackend]:
        foreign = (TransportError, TreeServeError)
        link = ManagerLink(
            Transport(self.roll_call, self.events, self.exchange, foreign, to_ours), "c"
        )
        await link.start(20.0)
        try:
            yield ServeBackend(
                SERVED,
                link,
                self.metrics,
                self.targets,
                foreign,
                to_ours,
                timeout_s,
                restart_timeout_s,
            )
        finally:
            await link.close(UnavailableError("shutting down"))


class Events:
    """A streaming call: a session's batches until the manager dies."""

    def __init__(self, manager: Manager, session_id: str) -> None:
        self._manager = manager
        self._session_id = session_id

    async def __aiter__(self) -> AsyncIterator[Batch]:
        died, sessions = self._manager._died, self._manager.sessions
        async with aclosing(sessions.events(self._session_id)) as batches:
            while True:
                coming = asyncio.ensure_future(anext(batches))
                dying = asyncio.ensure_future(died.wait())
                try:
                    await asyncio.wait((coming, dying), return_when=asyncio.FIRST_COMPLETED)
                except asyncio.CancelledError:
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
                    raise
                finally:
                    dying.cancel()
                if not coming.done():
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
                    self._manager._new()
                    raise LOST
                try:
                    batch = coming.result()
                except StopAsyncIteration:
                    return
                yield batch

    def cancel(self) -> None:
        pass


def to_ours(error: Exception) -> TreeServeError:
    return error if isinstance(error, TreeServeError) else PeerUnavailable("lost")


def request(name: str = "r", **changes: object) -> GenerationRequest:
    values: dict[str, object] = {
        "request_id": name,
        "prompt_ids": (1, 2),
        "sampling": SamplingParams(seed=3),
        "stop": StopConditions(9),
    }
    return GenerationRequest(**(values | changes))  # type: ignore[arg-type]


async def answer(manager: Manager, *asked: GenerationRequest) -> dict[int, GenerationEvent]:
    """What each request got, as one event each."""
    got: dict[int, GenerationEvent] = {}
    async with manager.backend() as backend:
        async for place, event in backend.generate(asked):
            got[place] = got[place].merged(event) if place in got else event
    return got


async def test_events_pass_through() -> None:
    manager = Manager([FIRST, LAST])
    assert await answer(manager, request()) == {0: FIRST.merged(LAST)}
    assert len(manager.requests) == 1
    assert manager.cancelled == []


async def test_requests_that_belong_together_go_in_one_message() -> None:
    manager = Manager([FIRST, LAST], [SECOND, LAST], [LAST])
    got = await answer(manager, request("a"), request("b"), request("c"))
    assert got == {0: FIRST.merged(LAST), 1: SECOND.merged(LAST), 2: LAST}
    assert manager.num_exchanges == 1


@pytest.mark.parametrize(("patience_s", "num_messages"), [(20.0, {1}), (0.0, set(range(2, 9)))])
async def test_requests_that_come_shortly_one_after_the_other_go_in_one_message(
    patience_s: float, num_messages: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But nobody waits for ever for those that keep coming."""
    monkeypatch.setattr(manager_link, "MAX_GATHER_S", patience_s)
    manager = Manager(*([LAST] for _ in range(8)))
    async with manager.backend() as backend:

        async def come(number: int) -> None:
            for _ in range(number * (manager_link.QUIET_BREATHS - 1)):
                await asyncio.sleep(0)
            async for place, event in backend.generate([request(str(number))]):
                assert (place, event) == (0, LAST)

        await asyncio.gather(*(come(number) for number in range(8)))
    assert manager.num_exchanges in num_messages


async def test_after_a_loss_a_request_goes_on_from_what_was_delivered() -> None:
    manager = Manager([FIRST, None, LOST], [SECOND, None, LOST], [LAST])
    got = await answer(manager, request())
    assert got[0].token_ids == (5, 6, 7, 8)
    assert [asked.emitted_ids for asked in manager.requests] == [(), (5, 6), (5, 6, 7)]
    assert {asked.sampling.seed for asked in manager.requests} == {3}


async def test_of_several_only_those_that_are_left_are_submitted_again() -> None:
    manager = Manager([FIRST, LAST], [FIRST, None, None, LOST], [LAST])
    got = await answer(manager, request("a"), request("b"))
    assert got[0].token_ids == got[1].token_ids == (5, 6, 8)
    assert [asked.request_id for asked in manager.requests] == ["a", "b", "b"]


async def test_a_manager_that_stops_hands_its_requests_on() -> None:
    manager = Manager([FIRST, None], [LAST])
    got = []
    async with manager.backend() as backend:
        async for _, event in backend.generate([request()]):
            got.append(event)
            if event is FIRST or event == FIRST:
                manager.sessions.close()
    assert got == [FIRST, LAST]
    assert manager.cancelled == ["r"]


async def test_a_manager_that_is_to_stop_is_left_before_it_does() -> None:
    manager = Manager([FIRST, None], [SECOND], [LAST])
    got = []
    async with manager.backend() as backend:

        async def come() -> list[GenerationEvent]:
            return [event async for _, event in backend.generate([request("late")])]

        async for _, event in backend.generate([request()]):
            if event == FIRST:
                manager.is_present = False
                while not backend._link.is_being_replaced:
                    await asyncio.sleep(0)
                with pytest.raises(UnavailableError):
                    await anext(backend.generate([request("probe", internal=True)]))
                late = asyncio.create_task(come())
                await asyncio.sleep(0)
                manager.scripts = [[LAST], [LAST]]
                manager._new()
                manager.is_present = True
            got.append(event)
        assert await late == [LAST], "it has waited for the next manager"
    assert got == [FIRST, LAST]
    emitted = {asked.request_id: asked.emitted_ids for asked in manager.requests}
    assert emitted == {"r": FIRST.token_ids, "late": ()}
    assert manager.cancelled == ["r"]


async def test_a_manager_that_leaves_counts_as_no_loss() -> None:
    manager = Manager(*([[None]] * (MAX_SUBMISSIONS + 2)), [LAST])
    async with manager.backend() as backend:
        asking = asyncio.ensure_future(anext(backend.generate([request()])))
        for number in range(MAX_SUBMISSIONS + 2):
            while len(manager.requests) <= number:
                await asyncio.sleep(0)
            manager._new()
        assert await asking == (0, LAST)


async def test_prompt_logprobs_are_delivered_once() -> None:
    scored = (TokenLogprob(2, -1.0, TopLogprobs((2,), (-1.0,))),)
    first = GenerationEvent((5,), 1, prompt_logprobs=scored)
    manager = Manager([first, None, LOST], [LAST])
    await answer(manager, request(prompt_logprobs=1))
    assert [asked.prompt_logprobs for asked in manager.requests] == [1, None]


async def test_a_request_that_is_lost_again_and_again_ends() -> None:
    manager = Manager(*([[LOST]] * MAX_SUBMISSIONS))
    with pytest.raises(PeerUnavailable):
        await answer(manager, request())
    assert len(manager.requests) == MAX_SUBMISSIONS


async def test_losses_are_counted_from_the_last_token_on() -> None:
    num_losses = 2 * MAX_SUBMISSIONS
    manager = Manager(*([[SECOND, None, LOST]] * num_losses), [LAST])
    got = await answer(manager, request())
    assert got[0].token_ids == (7,) * num_losses + (8,)


async def test_a_new_manager_is_not_waited_for_for_ever() -> None:
    manager = Manager([FIRST, None, LOST])
    async with manager.backend(restart_timeout_s=0.0) as backend:
        with pytest.raises(UnavailableError, match="another one is being started"):
            async for _ in backend.generate([request()]):
                manager.is_present = False


async def test_a_probe_is_not_submitted_again() -> None:
    manager = Manager([LOST])
    with pytest.raises(PeerUnavailable):
        await answer(manager, request(internal=True))


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
async def test_a_refusal_is_final_and_for_all(error: TreeServeError) -> None:
    manager = Manager([FIRST], [error])
    with pytest.raises(type(error)) as caught:
        await answer(manager, request("a"), request("b"))
    assert caught.value is error
    assert len(manager.requests) == 2


async def test_closing_early_cancels() -> None:
    manager = Manager([FIRST, None], [FIRST, None])
    async with manager.backend() as backend:
        async with aclosing(backend.generate([request("a"), request("b")])) as events:
            async for _ in events:
                break
        while len(manager.cancelled) < 2:
            await asyncio.sleep(0)
    assert sorted(manager.cancelled) == ["a", "b"]


async def test_an_answer_that_takes_too_long_is_given_up() -> None:
    manager = Manager([FIRST, None])
    async with manager.backend(timeout_s=0.0) as backend:
        with pytest.raises(ExpiredError):
            async for _ in backend.generate([request()]):
                pass
        while not manager.cancelled:
            await asyncio.sleep(0)


async def test_whoever_hangs_on_a_link_that_is_closed_hears_why() -> None:
    manager = Manager([FIRST, None])
    async with manager.backend() as backend:
        with pytest.raises(UnavailableError, match="shutting down"):
            async for _ in backend.generate([request()]):
                await backend._link.close(UnavailableError("shutting down"))


async def test_metrics_that_cannot_be_had_are_our_error() -> None:
    async with Manager().backend() as backend:
        with pytest.raises(PeerUnavailable):
            await backend.metrics_text()
        with pytest.raises(PeerUnavailable):
            await backend.targets()
