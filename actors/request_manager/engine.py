"""The loop of the request manager: schedule → draft → merge → step → verify → commit → emit.

One coroutine for each group of requests takes its steps independently of the others, so that one
group's drafting overlaps another's step and a pipeline of ranks stays full. Everything between two
awaits is atomic, and the LLM runs steps in the order in which they were sent.

The manager holds every token, so the ranks' KV is only a cache: after a failure the epoch goes up,
the ranks forget everything, and requests are prefilled again from their tokens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace

from actors.errors import InputError, PeerError, TreeServeError, UnavailableError
from actors.messages import LLMDescription, StepMessage
from actors.request_manager.admission import check_request, rule_of
from actors.request_manager.commit import OutputRules, commit
from actors.request_manager.composer import Composer, StepRow
from actors.request_manager.config import SchedulerConfig, SpeculationConfig
from actors.request_manager.generation import FinishReason, GenerationEvent, GenerationRequest
from actors.request_manager.guessing import Guessing
from actors.request_manager.kv_ledger import KVLedger
from actors.request_manager.merge import MergedTree
from actors.request_manager.outbox import Outbox, Sink
from actors.request_manager.ports import LLM, Clock, Drafter, Observer
from actors.request_manager.prefix_reuse import PrefixReuse
from actors.request_manager.records import Laps, Tally, step_outcome, step_record, traced_rows
from actors.request_manager.recovery import Fate, judge, restore
from actors.request_manager.request import Request, State
from actors.request_manager.scheduler import Scheduler
from actors.request_manager.settling import (
    Settler,
    accepted_drafts,
    results_by_request,
    step_draws,
    verify_row,
)
from actors.request_manager.shown_trees import with_trees
from actors.request_manager.turns import Turn
from actors.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

LOST_GRAMMAR = "the grammar needs too much work to be followed on"
"""The one cause: what was committed was drawn by the grammar, and so follows it."""


class Engine:
    """Generates for many requests at once with one LLM.

    Args:
        llm: the ranks, ready for a first step.
        description: what `llm.describe()` said.
        vocabulary: the LLM's.
        speculation, scheduling: configuration.
        drafters: whom to ask for drafts.
        observer: is told of steps and finished requests.
        clock: monotonic seconds.
        num_groups: groups of requests in flight at one time; the number of pipeline stages.
    """

    def __init__(
        self,
        llm: LLM,
        description: LLMDescription,
        vocabulary: Vocabulary,
        speculation: SpeculationConfig,
        scheduling: SchedulerConfig,
        drafters: Sequence[Drafter],
        observer: Observer,
        clock: Clock = time.monotonic,
        num_groups: int = 1,
    ) -> None:
        self.description = description
        self._llm = llm
        self._vocabulary = vocabulary
        self._speculation = speculation
        self._observer = observer
        self._clock = clock
        self._learning_s = 0.0  # after the step before
        self._ledger = KVLedger(description.num_kv_blocks, description.kv_block_tokens)
        self._reuse = PrefixReuse(
            enabled=scheduling.kv_prefix_reuse,
            block_tokens=description.kv_block_tokens,
            batch_invariant=description.batch_invariant,
        )
        self._scheduler = Scheduler(scheduling, self._ledger, self._reuse, num_groups, clock)
        self._composer = Composer()
        self._guessing = Guessing(speculation, drafters, description.vocab_size)
        acceptance = self._guessing.acceptance
        self._settler = Settler(self._ledger, self._reuse, self._composer, acceptance)
        self._next_request = 0
        self._work = [asyncio.Event() for _ in range(num_groups)]
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._refusal: str | None = "the engine was not started"

    # ------------------------------------------------------------ the face

    async def start(self) -> None:
        """Begin to take steps."""
        self._refusal = None
        self._tasks = [
            asyncio.create_task(self._run_group(group), name=f"group-{group}")
            for group in range(len(self._work))
        ]
        self._tasks.append(asyncio.create_task(self._watch(), name="watch"))

    async def stop(self) -> None:
        """End every request with an error, and the loop."""
        stopping = UnavailableError("the server is shutting down")
        self._refusal = str(stopping)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._refuse(stopping)

    def require_running(self) -> None:
        """Raise UnavailableError if the loop has ended by a fault of ours: nobody would notice."""
        if any(task.done() for task in self._tasks):
            raise UnavailableError("the engine's loop has ended")

    def submit(self, asked: Sequence[tuple[GenerationRequest, Sink]]) -> list[Request]:
        """Queue requests that belong together, all or none; their events go to their sinks.

        Returns:
            What `cancel` takes, in the same order.

        Raises:
            InputError: one of them cannot be run.
            OverloadedError: too many are waiting.
            UnavailableError: the LLM is lost or the engine is stopping.
        """
        if self._refusal is not None:
            raise UnavailableError(self._refusal)
        requests = [self._make_request(one, sink) for one, sink in asked]
        self._scheduler.submit(requests)
        for request in requests:
            if request.output.finish_reason is not None and not request.wants_prompt_logprobs:
                self._end(request, request.output.finish_reason)  # nothing is left to generate
        self._wake()
        return requests

    def cancel(self, request: Request) -> None:
        """End a request that nobody reads any more; does nothing if it is over."""
        if request.state in (State.FINISHED, State.CLOSING):
            return
        if request.in_flight:
            request.transition(State.CLOSING)
        else:
            self._end(request, FinishReason.ABORT)
        self._wake()

    async def generate(self, asked: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Generate one output; closing the iterator cancels it. Raises as `submit`."""
        outbox = Outbox()
        (request,) = self.submit([(asked, outbox.sink(asked.request_id))])
        try:
            is_over = False
            while not is_over:
                (news,) = (await outbox.take()).values()
                is_over = news.is_last
                if news.event is not None:
                    yield news.event
                if news.error is not None:
                    raise news.error
        finally:
            self.cancel(request)

    def begin_anew(self, drafter: str) -> None:
        """Another draft model drafts under this name now: what was learnt of it is void."""
        self._guessing.begin_anew(drafter)

    @property
    def is_idle(self) -> bool:
        """True if no request is waiting or running."""
        return not self._scheduler.num_waiting and not self._scheduler.num_running

    def audit(self) -> None:
        """Raise AssertionError if the KV ledger's books do not balance."""
        self._ledger.audit()

    # ------------------------------------------------------------ the loop

    async def _run_group(self, group: int) -> None:
        while True:
            await self._healthy.wait()
            epoch = self._composer.epoch
            try:
                turns = self._scheduler.plan(group)
                self._update_gauges()
                if turns or self._scheduler.has_releases:
                    await self._take_step(group, turns)
                else:
                    if self.is_idle:
                        self.audit()
                    await self._work[group].wait()
                    self._work[group].clear()
            except PeerError as error:
                await self._recover(epoch, error)
            except Exception as error:  # a supervised loop: one fault of ours must not end it
                logger.exception("a step failed")
                await self._recover(epoch, error)

    async def _take_step(self, group: int, turns: Sequence[Turn]) -> None:
        epoch = self._composer.epoch
        laps = Laps(self._clock)
        guesses = await self._guessing.ask(turns)
        laps.end("draft")
        if epoch != self._composer.epoch:
            return
        message, rows = self._compose(group, turns, guesses.trees)
        laps.end("merge")
        for row in rows:
            row.turn.request.in_step = True
        reply = await self._llm.step(message)
        laps.end("step")
        if epoch != self._composer.epoch:
            return
        results = results_by_request(rows, reply)
        verified = [verify_row(row, results) for row in rows]
        laps.end("verify")
        tally = Tally(laps.seconds["draft"], laps.seconds["step"], reply.forward_s)
        events = [
            self._settler.settle(row, outcome, results.get(row.row.request_id), tally)
            for row, outcome in zip(rows, verified, strict=True)
        ]
        laps.end("commit")
        shown = with_trees(rows, verified, events, laps.seconds, reply.forward_s)
        for row, outcome, event in zip(rows, verified, shown, strict=True):
            request = row.turn.request
            self._emit(request, event)
            if outcome is not None and outcome.is_cut and request.state is not State.FINISHED:
                self._fail(request, InputError(LOST_GRAMMAR, request.asked.grammar_param))
        laps.end("emit")
        since = self._clock()
        self._guessing.learn(
            guesses,
            step_outcome(message, rows, tally, laps.seconds, guesses, self._learning_s),
            accepted_drafts(rows, verified),
            step_draws(rows, verified, results) if self._guessing.learns_from_draws else (),
        )
        counts = self._scheduler.take_counts()
        traced = traced_rows(rows, verified, events)
        self._observer.step_done(step_record(message, rows, reply, tally, counts, laps, traced))
        self._learning_s = self._clock() - since
        self._wake()

    def _compose(
        self, group: int, turns: Sequence[Turn], trees: Mapping[int, MergedTree]
    ) -> tuple[StepMessage, list[StepRow]]:
        """Reserve KV and build the message; what was cancelled meanwhile stays out of it."""
        for turn in turns:
            if turn.request.state is State.CLOSING:
                self._end(turn.request, FinishReason.ABORT)
        turns = [turn for turn in turns if turn.request.state is not State.FINISHED]
        room = self._scheduler.room_for_drafts(turns)
        chosen = self._guessing.choose(trees, turns, room)
        grants = self._scheduler.grant(turns, {key: len(tree) for key, tree in chosen.items()})
        returned = self._scheduler.take_returned()
        return self._composer.compose(group, grants, chosen, returned)

    def _emit(self, request: Request, event: GenerationEvent | None) -> None:
        request.in_flight = request.in_step = False
        if event is not None and event.token_ids:
            # Chunks of a prompt are no sign: they may come again and again.
            request.num_failures = 0
        if request.state is State.CLOSING:
            self._end(request, FinishReason.ABORT)
        elif event is not None and event.finish_reason is not None:
            self._end(request, event.finish_reason, event)
        elif event is not None and event.token_ids:
            self._note_first_token(request)
            request.sink.put(event)

    # ------------------------------------------------------------ requests come and go

    def _make_request(self, asked: GenerationRequest, sink: Sink) -> Request:
        check_request(asked, self.description, self._speculation, self._guessing.names)
        rules = OutputRules(
            asked.stop,
            self._vocabulary,
            len(asked.prompt_ids),
            self.description.max_context_tokens,
            asked.sampling.min_tokens,
        )
        rule = rule_of(asked, self._speculation)
        request = Request(self._next_request, asked, rules, sink, self._clock(), rule)
        self._next_request += 1
        request.output = commit(rules, request.output, asked.emitted_ids).state
        return request

    def _end(
        self, request: Request, reason: FinishReason, event: GenerationEvent | None = None
    ) -> None:
        """Take a request out and put its last event."""
        self._forget(request, reason)
        last = event or GenerationEvent(visible_bytes=request.output.visible_bytes)
        request.sink.put(replace(last, finish_reason=reason, stats=request.stats))

    def _fail(self, request: Request, error: TreeServeError) -> None:
        """Take a request out and give its reader an error."""
        self._forget(request, FinishReason.ERROR)
        request.sink.fail(error)

    def _forget(self, request: Request, reason: FinishReason) -> None:
        if request.num_output:
            self._note_first_token(request)
        self._scheduler.remove(request)
        request.transition(State.FINISHED)
        self._guessing.forget(request.request_id)
        self._observer.request_finished(
            reason,
            request.prompt_len,
            request.num_output,
            request.arrival_s,
            request.first_token_s,
            self._clock(),
            request.asked.internal,
        )

    def _note_first_token(self, request: Request) -> None:
        if request.first_token_s is None:
            request.first_token_s = self._clock()

    # ------------------------------------------------------------ failures

    async def _watch(self) -> None:
        """See to the loss of an LLM that no step would notice, for none is in flight."""
        while True:
            await self._healthy.wait()
            epoch = self._composer.epoch
            await self._recover(epoch, await self._llm.lost())

    async def _recover(self, epoch: int, error: Exception) -> None:
        """Start a new epoch after a step was lost, and bring the ranks back."""
        if epoch != self._composer.epoch:
            return  # another group has seen to it
        logger.warning("epoch %d is lost: %r", epoch, error)
        self._healthy.clear()
        self._composer.new_epoch()
        for request in list(self._scheduler.requests()):
            match judge(request, error):
                case Fate.ABORTS:
                    self._end(request, FinishReason.ABORT)
                case Fate.FAILS:
                    why = f"the request's steps failed repeatedly: {error}"
                    self._fail(request, UnavailableError(why))
        self._scheduler.preempt_all()
        await restore(self._llm, self._adopt, self._refuse)
        self._refusal = None
        self._healthy.set()
        self._wake()

    def _refuse(self, error: UnavailableError) -> None:
        """Nobody is kept waiting for an LLM that does not come back."""
        self._refusal = str(error)
        for request in list(self._scheduler.requests()):
            self._fail(request, error)

    def _adopt(self, description: LLMDescription) -> None:
        """Go on with ranks that may have found room for another number of KV blocks than before."""
        self.description = description
        self._ledger.reset(description.num_kv_blocks)
        self._reuse.batch_invariant = description.batch_invariant
        for request in list(self._scheduler.requests()):
            if not self._scheduler.could_hold(request):
                lost = "after a restart the KV cache is too small for this request"
                self._fail(request, UnavailableError(lost))

    # ------------------------------------------------------------ small things

    def _wake(self) -> None:
        for event in self._work:
            event.set()

    def _update_gauges(self) -> None:
        self._observer.gauges(
            self._scheduler.num_running,
            self._scheduler.num_waiting,
            self._scheduler.num_waiting_tokens,
            self._ledger.num_used,
            self._ledger.num_blocks,
        )
