"""Events on their way to one reader: nothing is lost, and what it is late for is merged."""

from __future__ import annotations

import asyncio

from actors.errors import UnavailableError
from actors.request_manager.generation import FinishReason, GenerationEvent
from actors.request_manager.outbox import News, Outbox

LOST = UnavailableError("lost")


async def test_a_late_reader_gets_everything_as_one() -> None:
    outbox = Outbox()
    first, second = outbox.sink("a"), outbox.sink("b")
    first.put(GenerationEvent((1,), 1))
    second.put(GenerationEvent((9,), 1))
    first.put(GenerationEvent((2, 3), 4, finish_reason=FinishReason.STOP))
    second.fail(LOST)
    news = await outbox.take()
    assert news["a"].event == GenerationEvent((1, 2, 3), 4, finish_reason=FinishReason.STOP)
    assert news["b"] == News(GenerationEvent((9,), 1), LOST)
    assert all(one.is_last for one in news.values())


async def test_a_reader_waits_until_there_is_something() -> None:
    outbox = Outbox()
    reading = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.put("a", News(GenerationEvent((1,), 1)))
    outbox.drop("a")
    await asyncio.sleep(0)
    assert not reading.done()
    outbox.put("b", News(GenerationEvent((2,), 1)))
    assert list(await reading) == ["b"]


async def test_what_was_put_before_the_end_is_still_told() -> None:
    outbox = Outbox()
    outbox.put("a", News(GenerationEvent((1,), 1)))
    outbox.close()
    assert list(await outbox.take()) == ["a"]
    assert await outbox.take() == {}
