"""Who waits, in which order, and how many may."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.errors import OverloadedError
from actors.request_manager.commit import OutputRules
from actors.request_manager.generation import GenerationRequest, StopConditions
from actors.request_manager.outbox import Outbox
from actors.request_manager.request import Request, State
from actors.request_manager.waiting_queue import WaitingQueue
from tests.unit.request_manager.house import GREEDY, VOCABULARY


def request(number: int, num_tokens: int = 1, priority: int = 0) -> Request:
    stop = StopConditions(4)
    asked = GenerationRequest(str(number), (1,) * num_tokens, GREEDY, stop, priority=priority)
    rules = OutputRules(stop, VOCABULARY, num_tokens, 100)
    return Request(number, asked, rules, Outbox().sink(str(number)), 0.0)


def order(queue: WaitingQueue) -> list[int]:
    return [waiting.request_id for waiting in queue]


def test_the_order_is_by_priority_and_then_by_arrival() -> None:
    queue = WaitingQueue(10, 100)
    for number, priority in enumerate((0, 5, -1, 0, -1)):
        queue.join([request(number, priority=priority)], 0)
    assert order(queue) == [2, 4, 0, 3, 1]
    assert queue.first.request_id == 2


def test_who_was_preempted_goes_back_to_its_old_place() -> None:
    queue = WaitingQueue(1, 1)
    queue.join([request(7)], 0)
    for number in (3, 9):
        queue.put_back(request(number, 50))  # whatever the limits
    assert order(queue) == [3, 7, 9]


def test_places_that_are_idle_count_with_the_queue() -> None:
    queue = WaitingQueue(1, 100)
    queue.join([request(0), request(1)], num_idle_places=1)
    with pytest.raises(OverloadedError, match="too many requests"):
        queue.join([request(2)], num_idle_places=1)


def test_requests_that_belong_together_are_queued_together_or_not_at_all() -> None:
    queue = WaitingQueue(3, 100)
    queue.join([request(0)], 0)
    with pytest.raises(OverloadedError):
        queue.join([request(1), request(2), request(3)], 0)
    assert order(queue) == [0]
    queue.join([request(4), request(5)], 0)
    assert len(queue) == 3


def test_tokens_are_bounded_but_for_a_request_alone() -> None:
    queue = WaitingQueue(10, 20)
    alone = request(0, 50)
    queue.join([alone], 0)
    with pytest.raises(OverloadedError, match="tokens"):
        queue.join([request(1)], 0)
    queue.remove(alone)
    queue.join([request(2, 12), request(3, 8)], 0)
    with pytest.raises(OverloadedError, match="tokens"):
        queue.join([request(4)], 0)
    queue.remove(queue.first)
    queue.join([request(5, 12)], 0)


def test_tokens_are_not_bounded_while_places_are_idle() -> None:
    queue = WaitingQueue(10, 20)
    queue.join([request(0, 50), request(1, 50)], num_idle_places=2)
    with pytest.raises(OverloadedError, match="tokens"):
        queue.join([request(2)], num_idle_places=2)


def test_an_output_that_has_begun_goes_on_whatever_the_limits() -> None:
    queue = WaitingQueue(1, 20)
    queue.join([request(0, 15)], 0)
    begun = request(1, 50)
    begun.asked = replace(begun.asked, emitted_ids=(5,))
    queue.join([begun], 0)
    assert order(queue) == [0, 1]


def test_only_who_waits_is_in_it() -> None:
    queue = WaitingQueue(10, 20)
    inside, outside = request(0), request(1)
    queue.join([inside], 0)
    assert inside in queue
    assert outside not in queue
    with pytest.raises(ValueError, match="does not wait"):
        queue.remove(outside)
    queue.remove(inside)
    inside.transition(State.PREFILL)
    assert inside not in queue


def test_who_is_refused_is_told_when_there_will_be_room() -> None:
    now = [0.0]
    queue = WaitingQueue(4, 1000, lambda: now[0])
    queue.join([request(number, 10) for number in range(4)], 0)

    def wait_s(*more: Request) -> float:
        with pytest.raises(OverloadedError) as refused:
            queue.join(more, 0)
        return refused.value.retry_after_s

    assert wait_s(request(9)) == 1.0, "nothing is known yet"
    for number in range(4, 8):
        now[0] += 5.0
        queue.remove(queue.first)
        queue.join([request(number, 10)], 0)
    assert wait_s(request(9)) == pytest.approx(5.0)
    assert wait_s(request(9), request(10), request(11)) == pytest.approx(15.0)
    now[0] += 15.0
    assert wait_s(request(9)) == pytest.approx(10.0), "slower than it was"
    now[0] += 1e6
    assert wait_s(request(9)) == 120.0


def test_tokens_have_a_pace_of_their_own() -> None:
    now = [0.0]
    queue = WaitingQueue(100, 50, lambda: now[0])
    queue.join([request(0, 50)], 0)
    for number in range(1, 4):
        now[0] += 2.0
        queue.remove(queue.first)
        queue.join([request(number, 50)], 0)
    with pytest.raises(OverloadedError) as refused:
        queue.join([request(9, 100)], 0)
    assert refused.value.retry_after_s == pytest.approx(4.0)
