"""Iteration-level scheduling (Orca, OSDI 2022): before every step, who runs and how much.

Decodes come first, one root each; prompts fill what is left of the step in chunks, so a long
prompt never stops the others; drafts get the rest. Requests are admitted by priority and then first
come, first served, while there are KV blocks for their whole prompt. When blocks run out in
mid-decode, whoever is last in that order gives its blocks back and is computed again later.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from actors.errors import InputError
from actors.request_manager.config import SchedulerConfig
from actors.request_manager.kv_ledger import KVLedger
from actors.request_manager.request import Request, State
from actors.request_manager.waiting_queue import WaitingQueue


@dataclass(frozen=True)
class Turn:
    """A request's part in one step, before drafts.

    Attributes:
        start: its committed KV, in tokens.
        num_tokens: how many of its known tokens to run from there.
    """

    request: Request
    start: int
    num_tokens: int

    @property
    def draws(self) -> bool:
        """True if the step reaches the last known token, so that the next one can be drawn."""
        return self.start + self.num_tokens == len(self.request.tokens)

    @property
    def is_decode(self) -> bool:
        """True if nothing but the root is run, so that drafts may hang below it."""
        return self.num_tokens == 1 and self.draws and self.request.state is State.DECODE


@dataclass(frozen=True)
class Grant:
    """A turn that goes into the step.

    Attributes:
        new_blocks: KV blocks granted with it.
        num_drafts: draft nodes that its blocks have room for.
    """

    turn: Turn
    new_blocks: tuple[int, ...]
    num_drafts: int


class Scheduler:
    """Queues and the KV ledger of one LLM.

    Args:
        config: limits.
        ledger: its blocks.
        num_groups: groups of requests that take steps independently of each other.
    """

    def __init__(self, config: SchedulerConfig, ledger: KVLedger, num_groups: int = 1) -> None:
        self._config = config
        self._ledger = ledger
        self._waiting = WaitingQueue(config.max_queued_requests, config.max_queued_tokens)
        self._groups: list[list[Request]] = [[] for _ in range(num_groups)]
        self._released: list[int] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return sum(map(len, self._groups))

    def requests(self) -> Iterator[Request]:
        """Every request that is not finished."""
        yield from self._waiting
        yield from self._running()

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests that belong together: all of them or none.

        Raises:
            InputError: one could not run even alone.
            OverloadedError: the queue is full.
        """
        for request in requests:
            if not self.could_hold(request):
                raise InputError(
                    f"prompt and max_tokens together are {request.max_total_tokens} tokens; "
                    f"the KV cache holds {self._ledger.num_tokens}",
                    "max_tokens",
                )
        idle_places = max(0, self._config.max_running_requests - self.num_running)
        self._waiting.join(requests, idle_places)

    def could_hold(self, request: Request) -> bool:
        """True if the longest output that a request can have fits the KV cache, alone in it."""
        return request.max_total_tokens <= self._ledger.num_tokens

    def plan(self, group: int) -> list[Turn]:
        """Who takes part in the group's next step; decodes first. Admits waiting requests.

        Requests that are planned count as in flight until the step is over.
        """
        room = self._config.max_batch_tokens
        running = self._groups[group]
        decodes = [request for request in running if request.state is State.DECODE][:room]
        turns = [self._turn(request, 1) for request in decodes]
        room -= len(turns)
        prefills = [request for request in running if request.state is State.PREFILL]
        candidates = itertools.chain(prefills, self._admissions(group))
        while room and (request := next(candidates, None)):
            turns.append(self._turn(request, room))
            room -= turns[-1].num_tokens
        return turns

    def room_for_drafts(self, turns: Iterable[Turn]) -> int:
        """Draft nodes that the step's token limit leaves."""
        return self._config.max_batch_tokens - sum(turn.num_tokens for turn in turns)

    def grant(self, turns: Iterable[Turn], num_drafts: Mapping[int, int]) -> list[Grant]:
        """Reserve KV for the turns and for as many drafts as fit, preempting where it must.

        Args:
            turns: as planned; one that finds no block is left out.
            num_drafts: draft nodes by request id.
        """
        grants: list[Grant] = []
        pending = deque(turns)
        while pending:
            turn = pending.popleft()
            request_id = turn.request.request_id
            if request_id not in self._ledger:
                continue  # preempted in favour of an older one
            drafts = num_drafts.get(request_id, 0)
            while drafts and self._ledger.blocks_short(request_id, turn.num_tokens + drafts):
                drafts -= 1
            if self._make_room(turn, pending):
                blocks = self._ledger.write(request_id, turn.num_tokens + drafts)
                grants.append(Grant(turn, blocks, drafts))
        return grants

    def remove(self, request: Request) -> None:
        """Take a request out; its blocks are free from the next step on."""
        if request in self._waiting:
            self._waiting.remove(request)
        else:
            self._leave(request)

    @property
    def has_releases(self) -> bool:
        """True if the ranks hold on to requests that are gone."""
        return bool(self._released)

    def take_releases(self) -> tuple[int, ...]:
        """Requests that the ranks must forget, since the last call; for the next step message."""
        released, self._released = tuple(self._released), []
        return released

    def preempt_all(self) -> None:
        """The ranks have forgotten everything: every running request goes back to the queue."""
        running = list(self._running())
        for members in self._groups:
            members.clear()
        for request in running:
            request.preempt()
            self._waiting.put_back(request)
        self._released.clear()
        self._ledger.reset()

    def _running(self) -> Iterator[Request]:
        return itertools.chain.from_iterable(self._groups)

    def _turn(self, request: Request, room: int) -> Turn:
        request.in_flight = True
        start = self._ledger.account(request.request_id).committed
        return Turn(request, start, min(room, len(request.tokens) - start))

    def _admissions(self, group: int) -> Iterator[Request]:
        """Admit waiting requests, one for each time that the caller asks for the next."""
        while self._waiting and self._is_smallest(group) and self._fits(self._waiting.first):
            request = self._waiting.first
            self._waiting.remove(request)
            self._ledger.open(request.request_id)
            self._groups[group].append(request)
            request.group = group
            request.transition(State.PREFILL)
            yield request

    def _is_smallest(self, group: int) -> bool:
        return len(self._groups[group]) == min(map(len, self._groups))

    def _fits(self, request: Request) -> bool:
        """Room for the whole prompt, with a block to spare for everyone who runs already."""
        if self.num_running >= self._config.max_running_requests:
            return False
        owed = sum(self._blocks_owed(other) for other in self._running())
        free = self._ledger.num_blocks - self._ledger.num_used - owed
        return self._blocks_for(request) + self.num_running <= free

    def _blocks_for(self, request: Request) -> int:
        return -(-len(request.tokens) // self._ledger.block_tokens)

    def _blocks_owed(self, request: Request) -> int:
        held = len(self._ledger.account(request.request_id).blocks)
        return max(0, self._blocks_for(request) - held)

    def _make_room(self, turn: Turn, pending: Iterable[Turn]) -> bool:
        """Preempt whoever came last until the turn's own tokens fit; False if it cannot be."""
        request = turn.request
        while self._ledger.blocks_short(request.request_id, turn.num_tokens):
            victim = self._last_comer({request, *(other.request for other in pending)})
            self._leave(victim)
            victim.preempt()
            self._waiting.put_back(victim)
            if victim is request:
                return False
        return True

    def _last_comer(self, planned: set[Request]) -> Request:
        idle = (request for request in self._running() if not request.in_flight)
        candidates = {*idle, *planned}
        holding = [request for request in candidates if request.request_id in self._ledger]
        return max(holding, key=lambda request: (request.asked.priority, request.request_id))

    def _leave(self, request: Request) -> None:
        self._groups[request.group].remove(request)
        self._ledger.close(request.request_id)
        if request.known_to_ranks:
            self._released.append(request.request_id)
