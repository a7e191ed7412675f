"""Iteration-level scheduling (Orca, OSDI 2022): before every step, who runs and how much.

Decodes come first, one root each; prompts fill what is left of the step in chunks, the most urgent
first, so a long prompt never stops the others; drafts get the rest. Requests are admitted by
priority and then first come, first served, while there are KV blocks for what they have to run now.
Blocks that hold the same tokens already are taken over (`prefix_reuse`); one whose next block is
being computed for another request waits for it.

When blocks run out in mid-decode, blocks that were granted for drafts are taken back first; then
whoever is last in that order gives all of its blocks back, and is computed again later. So the
first request always gets on, and speculation never drives anybody out.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from actors.errors import InputError
from actors.request_manager.config import SchedulerConfig
from actors.request_manager.kv_ledger import KVLedger
from actors.request_manager.ports import Clock
from actors.request_manager.prefix_reuse import PrefixReuse
from actors.request_manager.request import Request, State
from actors.request_manager.turns import AdmissionCounts, Grant, Returned, Turn
from actors.request_manager.waiting_queue import WaitingQueue, seniority


class Scheduler:
    """Queues and the KV ledger of one LLM.

    Args:
        config: limits.
        ledger: its blocks.
        reuse: which of them are shared.
        num_groups: groups of requests that take steps independently of each other.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        ledger: KVLedger,
        reuse: PrefixReuse,
        num_groups: int = 1,
        clock: Clock = time.monotonic,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._reuse = reuse
        self._waiting = WaitingQueue(config.max_queued_requests, config.max_queued_tokens, clock)
        self._groups: list[list[Request]] = [[] for _ in range(num_groups)]
        self._yielding: set[int] = set()
        self._trimmed: list[int] = []
        self._released: list[int] = []
        self._counts = AdmissionCounts()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens of the requests that wait."""
        return self._waiting.num_tokens

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
        self._preempt_yielding(group)
        room = self._config.max_batch_tokens
        running = sorted(self._groups[group], key=seniority)
        decodes = [request for request in running if request.state is State.DECODE][:room]
        turns = [self._turn(request, 1) for request in decodes]
        room -= len(turns)
        candidates = self._candidates(group, running)
        while room and (request := next(candidates, None)):
            turns.append(self._turn(request, room))
            room -= turns[-1].num_tokens
        return turns

    def room_for_drafts(self, turns: Iterable[Turn]) -> int:
        """Draft nodes that the step's token limit leaves."""
        return self._config.max_batch_tokens - sum(turn.num_tokens for turn in turns)

    def grant(self, turns: Sequence[Turn], num_drafts: Mapping[int, int]) -> list[Grant]:
        """Reserve KV for the turns, preempting where it must; then for as many drafts as fit.

        Args:
            turns: as planned; one that finds no block is left out.
            num_drafts: draft nodes by request id.
        """
        grants: list[Grant] = []
        self._trim_if_short(turns)
        pending = deque(sorted(turns, key=lambda turn: seniority(turn.request)))
        while pending:
            turn = pending.popleft()
            request_id = turn.request.request_id
            if request_id not in self._ledger:
                continue  # preempted in favour of a more urgent one
            if self._make_room(turn, pending):
                known = turn.request.known_to_ranks
                reused = () if known else tuple(self._ledger.account(request_id).blocks)
                blocks = self._ledger.write(request_id, turn.num_tokens)
                grants.append(Grant(turn, blocks, reused_blocks=reused))
        reserved = self._blocks_awaited(grant.turn for grant in grants)
        return [
            self._with_drafts(grant, num_drafts.get(grant.turn.request.request_id, 0), reserved)
            for grant in grants
        ]

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

    def take_returned(self) -> Returned:
        """What the ranks must take back since the last call; for the next step message."""
        returned = Returned(tuple(self._trimmed), tuple(self._released))
        self._trimmed, self._released = [], []
        return returned

    def take_counts(self) -> AdmissionCounts:
        """What was counted since the last call."""
        counts, self._counts = self._counts, AdmissionCounts()
        return counts

    def preempt_all(self) -> None:
        """The ranks have forgotten everything: every running request goes back to the queue."""
        running = list(self._running())
        for members in self._groups:
            members.clear()
        for request in running:
            request.preempt()
            self._waiting.put_back(request)
        self._yielding.clear()
        self._trimmed.clear()
        self._released.clear()
        self._ledger.reset()

    def _running(self) -> Iterator[Request]:
        return itertools.chain.from_iterable(self._groups)

    def _turn(self, request: Request, room: int) -> Turn:
        request.in_flight = True
        start = self._ledger.account(request.request_id).committed
        return Turn(request, start, min(room, len(request.tokens) - start))

    def _candidates(self, group: int, running: Sequence[Request]) -> Iterator[Request]:
        """Whose prompts are to be run, in order: prefills that have begun, and new ones.

        The prefills wait only for who is more urgent and can be admitted.
        """
        begun = deque(request for request in running if request.state is State.PREFILL)
        admissions = self._admissions(group)
        while begun:
            is_next = not self._waiting or seniority(begun[0]) < seniority(self._waiting.first)
            admitted = None if is_next else next(admissions, None)
            yield admitted or begun.popleft()
        yield from admissions

    def _admissions(self, group: int) -> Iterator[Request]:
        """Admit waiting requests, one for each time that the caller asks for the next."""
        while self._waiting and self._is_smallest(group):
            request = self._waiting.first
            keys = self._reuse.wanted(request)
            found = self._ledger.find(keys)
            if self._is_underway(keys, len(found)) or not self._fits(request, found):
                return
            self._waiting.remove(request)
            self._ledger.open(request.request_id, found)
            self._groups[group].append(request)
            request.group = group
            num_reused = len(found) * self._ledger.block_tokens
            request.begin(num_reused)
            self._counts.admitted_tokens += len(request.tokens)
            self._counts.queried_tokens += len(request.tokens) if keys else 0
            self._counts.reused_tokens += num_reused
            yield request

    def _is_smallest(self, group: int) -> bool:
        return len(self._groups[group]) == min(map(len, self._groups))

    def _is_underway(self, keys: Sequence[bytes], num_found: int) -> bool:
        """True if the first block that was not found is being computed for another request."""
        if num_found == len(keys):
            return False
        return any(
            keys[num_found] in self._keys_to_come(other)
            for other in self._running()
            if other.state is State.PREFILL
        )

    def _keys_to_come(self, request: Request) -> Sequence[bytes]:
        """Keys of the blocks that a prefill is going to publish."""
        offered = self._reuse.offered(request, len(request.tokens))
        return offered[self._ledger.account(request.request_id).published :]

    def _fits(self, request: Request, found: Sequence[int]) -> bool:
        """Room for all of its tokens, with a block to spare for everyone who runs already."""
        if self.num_running >= self._config.max_running_requests:
            return False
        needed = self._ledger.blocks_for(len(request.tokens)) - len(found)
        owed = sum(self._blocks_owed(other) for other in self._running())
        free = self._ledger.num_available - self._ledger.num_unused(found) - owed
        return needed + self.num_running <= free

    def _blocks_owed(self, request: Request, num_more: int = 0) -> int:
        """Blocks missing for the tokens that are known and so many more."""
        held = len(self._ledger.account(request.request_id).blocks)
        return max(0, self._ledger.blocks_for(len(request.tokens) + num_more) - held)

    def _with_drafts(self, grant: Grant, num_drafts: int, num_reserved: int) -> Grant:
        """Reserve KV for drafts too, but no block that a request outside the step waits for."""
        turn, ledger = grant.turn, self._ledger
        account = ledger.account(turn.request.request_id)
        spare = max(0, ledger.num_available - num_reserved)
        room = (len(account.blocks) + spare) * ledger.block_tokens - account.written
        num_drafts = min(num_drafts, room)
        blocks = ledger.write(turn.request.request_id, turn.num_tokens + num_drafts)
        return replace(grant, num_drafts=num_drafts, new_blocks=grant.new_blocks + blocks)

    def _make_room(self, turn: Turn, pending: Iterable[Turn]) -> bool:
        """Free blocks until the turn's own tokens fit; False if it has to stand back.

        Whoever is last in order is preempted. If that one is in another group's step, it will be
        when that is over, and this turn waits until then.
        """
        request = turn.request
        while self._ledger.blocks_short(request.request_id, turn.num_tokens):
            victim = max(self._running(), key=seniority)
            planned = {request, *(other.request for other in pending)}
            if victim.in_flight and victim not in planned:
                self._yielding.add(victim.request_id)
                request.in_flight = False
                return False
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _trim_if_short(self, turns: Sequence[Turn]) -> None:
        """If blocks are short, take back those that were granted for drafts of steps before."""
        wanted = sum(
            self._ledger.blocks_wanted(turn.request.request_id, turn.num_tokens) for turn in turns
        )
        if wanted + self._blocks_awaited(turns) <= self._ledger.num_available:
            return
        for request in self._running():
            if self._ledger.trim(request.request_id):
                self._trimmed.append(request.request_id)

    def _blocks_awaited(self, turns: Iterable[Turn]) -> int:
        """Blocks that requests outside the step will want for their next one."""
        in_step = {turn.request for turn in turns}
        return sum(self._blocks_owed(other, 1) for other in self._running() if other not in in_step)

    def _preempt(self, victim: Request) -> None:
        self._leave(victim)
        victim.preempt()
        self._waiting.put_back(victim)
        self._counts.preemptions += 1

    def _preempt_yielding(self, group: int) -> None:
        """Preempt who had to stay until the group's step was over."""
        for request in list(self._groups[group]):
            if request.request_id in self._yielding:
                self._preempt(request)

    def _leave(self, request: Request) -> None:
        self._groups[request.group].remove(request)
        self._ledger.close(request.request_id)
        self._yielding.discard(request.request_id)
        if request.known_to_ranks:
            self._released.append(request.request_id)
