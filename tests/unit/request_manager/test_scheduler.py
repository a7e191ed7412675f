"""Who is admitted, and who gives way, where the engine's own tests leave it to chance."""

from __future__ import annotations

from collections.abc import Sequence

from actors.request_manager.commit import OutputRules
from actors.request_manager.config import SchedulerConfig
from actors.request_manager.generation import StopConditions
from actors.request_manager.kv_ledger import KVLedger
from actors.request_manager.outbox import Outbox
from actors.request_manager.prefix_reuse import PrefixReuse
from actors.request_manager.request import Request, State
from actors.request_manager.scheduler import Scheduler
from tests.unit.request_manager.house import VOCABULARY, ask

BLOCK_TOKENS = 4


class Room:
    """A scheduler of one group, and steps in which every turn's last token draws a 7."""

    def __init__(self, num_blocks: int) -> None:
        self.ledger = KVLedger(num_blocks, BLOCK_TOKENS)
        self.reuse = PrefixReuse(enabled=True, block_tokens=BLOCK_TOKENS, batch_invariant=True)
        limits = SchedulerConfig(max_batch_tokens=64, kv_block_tokens=BLOCK_TOKENS)
        self.scheduler = Scheduler(limits, self.ledger, self.reuse)
        self.num_requests = 0

    def submit(self, prompt: Sequence[int]) -> Request:
        rules = OutputRules(StopConditions(4), VOCABULARY, len(prompt), 512)
        sink = Outbox().sink(str(self.num_requests))
        request = Request(self.num_requests, ask(prompt, 4), rules, sink, 0.0)
        self.num_requests += 1
        self.scheduler.submit([request])
        return request

    def step(self, *, backwards: bool = False) -> list[int]:
        """The requests that took part."""
        turns = self.scheduler.plan(0)
        grants = self.scheduler.grant(turns[:: -1 if backwards else 1], {})
        for grant in grants:
            request = grant.turn.request
            self.ledger.commit(request.request_id, grant.turn.num_tokens)
            request.tokens.append(7)
            request.in_flight = False
            if request.state is State.PREFILL:
                request.transition(State.DECODE)
            committed = self.ledger.account(request.request_id).committed
            self.ledger.publish(request.request_id, self.reuse.offered(request, committed))
        self.ledger.audit()
        return [grant.turn.request.request_id for grant in grants]

    def finish(self, request: Request) -> None:
        self.scheduler.remove(request)
        request.transition(State.FINISHED)


def test_the_older_gets_the_last_block_whatever_the_order_of_turns() -> None:
    room = Room(num_blocks=3)
    room.submit([1, 2, 3, 4])
    younger = room.submit([2, 3, 4])
    assert room.step() == [0, 1]
    assert room.step(backwards=True) == [0, 1]
    assert room.step(backwards=True) == [0]
    assert younger.state is State.WAITING


def test_kept_blocks_that_a_request_takes_over_are_not_free_for_it_as_well() -> None:
    """Of five blocks one request holds two and is about to want a third, two are kept."""
    room = Room(num_blocks=5)
    first = room.submit([1] * 8)
    room.step()
    room.finish(first)
    room.submit([2] * 8)
    assert room.step() == [1]
    wants_three = room.submit([*[1] * 8, 5])
    assert room.step() == [1]
    assert wants_three.state is State.WAITING
    assert len(room.ledger.find(wants_three.block_keys)) == 2


def test_tokens_that_wait_and_that_are_let_in_are_counted() -> None:
    room = Room(num_blocks=3)
    for token in (1, 2):
        room.submit([token] * 8)
    assert room.scheduler.num_waiting_tokens == 16
    assert room.step() == [0]
    assert room.scheduler.num_waiting_tokens == 8
    assert room.scheduler.take_counts().admitted_tokens == 8
