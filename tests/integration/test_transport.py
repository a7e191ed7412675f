"""Manager to rank over real sockets: order, and what happens under faults."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from echo_rank import (
    BREAK_GROUP,
    HANG_GROUP,
    PATIENCE_S,
    EchoRank,
    connected,
    process,
    serving,
    step,
)

from actors import rpc
from actors.errors import PeerError, PeerTimeout, PeerUnavailable, ProtocolError, StaleEpoch
from actors.llm.actor import LLMActor
from actors.messages import RowResult, StepReply
from actors.request_manager.clients import LLMClient

pytestmark = pytest.mark.integration


@pytest.fixture
def rank() -> EchoRank:
    return EchoRank()


@pytest.fixture
def address(rank: EchoRank) -> Iterator[str]:
    with serving(rank) as address:
        yield address


async def in_thread(wait: Callable[[float], bool]) -> None:
    assert await asyncio.to_thread(wait, PATIENCE_S)


# ---------------------------------------------------------------- the ordinary way


async def test_a_step_comes_back_with_its_results(address: str) -> None:
    async with connected(address) as client:
        reply = await client.step(step(0, token=40))
    assert reply == StepReply(1, 0, (RowResult(1, (40, 41)),))


async def test_describe_gives_what_the_last_rank_serves(address: str) -> None:
    with serving(EchoRank("last")) as last:
        async with connected(address, last) as client:
            description = await client.describe()
    assert (description.model_id, description.num_kv_blocks) == ("last", 64)


async def test_steps_in_flight_run_in_order_and_find_their_callers(
    rank: EchoRank, address: str
) -> None:
    async with connected(address) as client:
        replies = await asyncio.gather(*(client.step(step(n, token=n)) for n in range(100)))
    assert rank.steps == [(1, n) for n in range(100)]
    assert [reply.results[0].drawn_ids[0] for reply in replies] == list(range(100))


async def test_every_rank_gets_every_step_and_the_last_one_answers(
    rank: EchoRank, address: str
) -> None:
    first = EchoRank("first")
    with serving(first) as first_address:
        async with connected(first_address, address) as client:
            blocked = asyncio.create_task(client.step(step(0, group=HANG_GROUP)))
            await in_thread(first.hanging.wait)
            await in_thread(rank.hanging.wait)
            first.resume.set()
            done, _ = await asyncio.wait({blocked}, timeout=0.1)
            assert not done
            rank.resume.set()
            assert (await blocked).step_id == 0


async def test_one_thread_runs_all_steps_of_all_streams(rank: EchoRank, address: str) -> None:
    for epoch in (1, 2, 3):
        async with connected(address) as client:
            await client.step(step(0, epoch))
    assert rank.steps == [(1, 0), (2, 0), (3, 0)]
    assert len(rank.threads) == 1
    assert threading.get_ident() not in rank.threads


async def test_a_new_stream_queues_behind_the_step_of_the_old_one(
    rank: EchoRank, address: str
) -> None:
    async with connected(address) as old:
        lost = asyncio.create_task(old.step(step(0, group=HANG_GROUP)))
        await in_thread(rank.hanging.wait)
        await old.close()
        with pytest.raises(PeerUnavailable, match="closed"):
            await lost
        async with connected(address) as new:
            waiting = asyncio.create_task(new.step(step(0, epoch=2)))
            done, _ = await asyncio.wait({waiting}, timeout=0.1)
            assert not done
            assert rank.steps == [(1, 0)]
            rank.resume.set()
            assert (await waiting).epoch == 2
    assert rank.steps == [(1, 0), (2, 0)]


# ---------------------------------------------------------------- faults


async def test_a_late_step_is_a_timeout_and_its_reply_is_dropped(
    rank: EchoRank, address: str
) -> None:
    async with connected(address, step_timeout_s=0.2) as client:
        with pytest.raises(PeerTimeout, match=r"step 0 within 0\.2 s"):
            await client.step(step(0, group=HANG_GROUP))
        rank.resume.set()
        client._step_timeout_s = PATIENCE_S
        assert (await client.step(step(1))).step_id == 1


async def test_a_stale_epoch_says_so_and_restore_reconnects(address: str) -> None:
    async with connected(address) as client:
        await client.step(step(0, epoch=5))
        with pytest.raises(StaleEpoch, match="epoch 4 is over, 5 runs"):
            await client.step(step(1, epoch=4))
        with pytest.raises(StaleEpoch):
            await client.step(step(2, epoch=5))
        await client.restore()
        assert (await client.step(step(0, epoch=6))).epoch == 6


async def test_an_unexpected_error_ends_the_stream_and_not_the_rank(
    rank: EchoRank, address: str
) -> None:
    async with connected(address) as client:
        steps = [step(0), step(1, group=BREAK_GROUP), step(2)]
        answers = await asyncio.gather(*map(client.step, steps), return_exceptions=True)
        assert isinstance(answers[0], StepReply)
        assert type(answers[1]) is type(answers[2]) is PeerError
        assert "ZeroDivisionError: no such thing" in str(answers[1])
        assert rank.steps == [(1, 0), (1, 1)]
        await client.restore()
        assert (await client.step(step(0, epoch=2))).epoch == 2


async def test_a_killed_rank_fails_every_step_in_flight(rank: EchoRank, address: str) -> None:
    """The killed rank is not the one that answers; the other one never gets to."""
    with process() as (child, first_address):
        async with connected(first_address, address, respawned=(address,)) as client:
            steps = [step(0, group=HANG_GROUP), step(1), step(2)]
            running = asyncio.gather(*map(client.step, steps), return_exceptions=True)
            await in_thread(rank.hanging.wait)
            child.kill()
            assert [type(answer) for answer in await running] == [PeerUnavailable] * 3
            with pytest.raises(PeerUnavailable, match=first_address):
                await client.step(step(3))
            rank.resume.set()
            await client.restore()
            assert (await client.step(step(0, epoch=2))).epoch == 2


async def test_a_server_that_stops_is_unavailable(rank: EchoRank) -> None:
    server = LLMActor(lambda: rank)
    async with connected(server.start()) as client:
        running = asyncio.create_task(client.step(step(0, group=HANG_GROUP)))
        await in_thread(rank.hanging.wait)
        await asyncio.to_thread(server.stop, 0.0)
        with pytest.raises(PeerUnavailable):
            await running
        rank.resume.set()


async def test_nobody_there_is_unavailable_or_a_timeout() -> None:
    with socket.socket() as unused:
        unused.bind((rpc.LOOPBACK, 0))
        address = f"{rpc.LOOPBACK}:{unused.getsockname()[1]}"
        async with connected(address) as client:
            client._connect_timeout_s = 0.2
            with pytest.raises(PeerTimeout, match=address):
                await client.describe()
            with pytest.raises(PeerUnavailable, match=address):
                await client.step(step(0))


async def test_ranks_that_cannot_be_brought_back(address: str) -> None:
    async def respawn() -> tuple[str, ...]:
        raise PeerUnavailable("no machine left")

    client = LLMClient([address], respawn, PATIENCE_S)
    with pytest.raises(PeerUnavailable, match="no machine left"):
        await client.restore()
    for call in (client.step(step(0)), client.describe()):
        with pytest.raises(PeerUnavailable, match="closed"):
            await call
    await client.close()


async def test_the_same_step_is_not_in_flight_twice(rank: EchoRank, address: str) -> None:
    async with connected(address) as client:
        first = asyncio.create_task(client.step(step(0, group=HANG_GROUP)))
        await in_thread(rank.hanging.wait)
        with pytest.raises(ProtocolError, match="step 0 is in flight already"):
            await client.step(step(0))
        rank.resume.set()
        assert (await first).step_id == 0


async def test_a_caller_that_gives_up_harms_nobody(rank: EchoRank, address: str) -> None:
    async with connected(address) as client:
        gone = asyncio.create_task(client.step(step(0, group=HANG_GROUP)))
        await in_thread(rank.hanging.wait)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        rank.resume.set()
        assert (await client.step(step(1))).step_id == 1


async def test_closing_leaves_no_task_behind(rank: EchoRank, address: str) -> None:
    before = asyncio.all_tasks()
    async with connected(address) as client:
        await client.step(step(0))
        assert asyncio.all_tasks() > before
    # What is left is grpc.aio's own: it collects the status of the cancelled call, and ends.
    left = asyncio.all_tasks() - before
    await asyncio.wait_for(asyncio.gather(*left), PATIENCE_S)


def test_a_client_is_made_inside_a_running_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        LLMClient(["127.0.0.1:1"], connected, PATIENCE_S)
