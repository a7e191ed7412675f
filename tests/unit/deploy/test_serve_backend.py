"""The ingress's way to the manager: over its death, and without a trace of the transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest

from actors.errors import (
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
from actors.sampling import SamplingParams
from deploy.backend import BackendDescription
from deploy.serve_backend import MAX_SUBMISSIONS, ServeBackend


class TransportError(Exception):
    """Stands for whatever Serve raises."""


LOST = TransportError("actor died")
FIRST, SECOND = GenerationEvent((5, 6), 2), GenerationEvent((7,), 3)
LAST = GenerationEvent((8,), 4, finish_reason=FinishReason.STOP)


class Call:
    """A streaming call that yields its script; an exception in it is raised."""

    def __init__(self, script: Sequence[GenerationEvent | Exception]) -> None:
        self._script = script
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[GenerationEvent]:
        for item in self._script:
            if isinstance(item, Exception):
                raise item
            yield item

    def cancel(self) -> None:
        self.cancelled = True


class Manager:
    """Answers each submission with the next script."""

    def __init__(self, *scripts: Sequence[GenerationEvent | Exception]) -> None:
        self._scripts = list(scripts)
        self.requests: list[GenerationRequest] = []
        self.calls: list[Call] = []

    def submit(self, request: GenerationRequest) -> Call:
        self.requests.append(request)
        self.calls.append(Call(self._scripts.pop(0)))
        return self.calls[-1]

    async def metrics(self) -> str:
        raise LOST

    def backend(self) -> ServeBackend:
        return ServeBackend(
            BackendDescription("m", 100, 300),
            self.submit,  # type: ignore[arg-type]
            self.metrics,
            (TransportError, TreeServeError),
            lambda error: error if isinstance(error, TreeServeError) else PeerUnavailable("lost"),
        )


def request(**changes: object) -> GenerationRequest:
    values: dict[str, object] = {
        "request_id": "r",
        "prompt_ids": (1, 2),
        "sampling": SamplingParams(seed=3),
        "stop": StopConditions(9),
    }
    return GenerationRequest(**(values | changes))  # type: ignore[arg-type]


async def events_of(manager: Manager, asked: GenerationRequest) -> list[GenerationEvent]:
    return [event async for event in manager.backend().generate(asked)]


async def test_events_pass_through() -> None:
    manager = Manager([FIRST, LAST])
    assert await events_of(manager, request()) == [FIRST, LAST]
    assert len(manager.requests) == 1


async def test_after_a_loss_the_request_goes_on_from_what_was_delivered() -> None:
    manager = Manager([FIRST, LOST], [SECOND, LOST], [LAST])
    assert await events_of(manager, request()) == [FIRST, SECOND, LAST]
    assert [asked.emitted_ids for asked in manager.requests] == [(), (5, 6), (5, 6, 7)]
    assert {asked.sampling.seed for asked in manager.requests} == {3}
    assert all(call.cancelled for call in manager.calls)


async def test_a_loss_after_the_last_event_changes_nothing() -> None:
    manager = Manager([FIRST, LAST, LOST])
    assert await events_of(manager, request()) == [FIRST, LAST]
    assert len(manager.requests) == 1


async def test_prompt_logprobs_are_delivered_once() -> None:
    scored = (TokenLogprob(2, -1.0, TopLogprobs((2,), (-1.0,))),)
    first = GenerationEvent((5,), 1, prompt_logprobs=scored)
    manager = Manager([first, LOST], [LAST])
    await events_of(manager, request(prompt_logprobs=1))
    assert [asked.prompt_logprobs for asked in manager.requests] == [1, None]


async def test_a_request_that_is_lost_again_and_again_ends() -> None:
    manager = Manager(*([[LOST]] * MAX_SUBMISSIONS))
    with pytest.raises(PeerUnavailable):
        await events_of(manager, request())
    assert len(manager.requests) == MAX_SUBMISSIONS


async def test_a_probe_is_not_submitted_again() -> None:
    manager = Manager([LOST])
    with pytest.raises(PeerUnavailable):
        await events_of(manager, request(internal=True))


@pytest.mark.parametrize(
    "error", [InputError("bad", "prompt"), OverloadedError("full"), UnavailableError("draining")]
)
async def test_a_refusal_is_final(error: TreeServeError) -> None:
    manager = Manager([error])
    with pytest.raises(type(error)) as caught:
        await events_of(manager, request())
    assert caught.value is error


async def test_closing_early_cancels_the_call() -> None:
    manager = Manager([FIRST, LAST])
    async with aclosing(manager.backend().generate(request())) as events:
        async for _ in events:
            break
    assert [call.cancelled for call in manager.calls] == [True]


async def test_metrics_that_cannot_be_had_are_our_error() -> None:
    with pytest.raises(PeerUnavailable):
        await Manager().backend().metrics_text()
