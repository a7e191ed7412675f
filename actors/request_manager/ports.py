"""What the request manager needs from the world, as protocols.

Real parts and fakes implement the same protocols and pass the same contract tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from actors.errors import PeerError
from actors.messages import LLMDescription, StepMessage, StepReply
from actors.request_manager.depth_counts import DepthCounts
from actors.request_manager.drafter_names import LEARNERS, kind_of
from actors.request_manager.generation import FinishReason
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from actors.verification import NodeDraws, Rule


class LLM(Protocol):
    """The ranks of one LLM, seen as one."""

    async def describe(self) -> LLMDescription:
        """What the ranks serve. Raises PeerError."""

    async def step(self, message: StepMessage) -> StepReply:
        """Run one step; calls may overlap and are run in `step_id` order.

        Raises:
            PeerError: the step's outcome is unknown; the epoch is lost.
        """

    async def lost(self) -> PeerError:
        """Wait until the ranks are lost, whether or not a step is in flight; returns why."""

    async def restore(self) -> None:
        """Bring the ranks back after they were lost; returns when they take a new epoch.

        Raises:
            PeerError: they cannot be brought back.
        """


@dataclass(frozen=True)
class DraftTask:
    """What a drafter is told of one request.

    Attributes:
        request_id: the manager's number for it.
        token_ids: prompt and output so far; the last one is the root. A view: do not keep it.
        prompt_len: how many of them are prompt.
        sampling: as for the LLM (the noise is shared).
        max_nodes, max_depth: more than this will be cut off.
        drafters: names of those that may be asked, or of several (`allows`); None for all.
        banned_early: token ids that cannot be drawn before `sampling.min_tokens` output tokens.
        least_probability: nodes that are accepted with a lower one are of no use.
        tokens_per_s: what all requests together commit: what a drafter's time is worth.
        grammar: what the output must follow, if anything.
        verification: the rule by which the drafts will be verified.
        is_shown: whoever sent the request may read the drafts, so that none may hold what others
            were answered.
    """

    request_id: int
    token_ids: Sequence[int]
    prompt_len: int
    sampling: SamplingParams
    max_nodes: int
    max_depth: int
    drafters: tuple[str, ...] | None = None
    banned_early: tuple[int, ...] = ()
    least_probability: float = 0.0
    tokens_per_s: float = 0.0
    grammar: str = ""
    verification: Rule = Rule.COUPLED
    is_shown: bool = False

    def allows(self, drafter: str) -> bool:
        """True if the request lets a drafter be asked: by its name, or by that of all its kind."""
        return _allows(self.drafters, self.is_shown, drafter)


def _allows(drafters: tuple[str, ...] | None, is_shown: bool, drafter: str) -> bool:
    if is_shown and drafter in LEARNERS:
        return False
    return drafters is None or not {drafter, kind_of(drafter)}.isdisjoint(drafters)


Encode = Callable[[str], Sequence[int]]
"""From a text to the tokens that the LLM would rather say it in, behind other text."""


@dataclass(frozen=True)
class Draft:
    """A drafter's guesses below one request's root.

    Attributes:
        tree: nodes that hang off the context are children of the root.
        scores: one per node: an estimate, in [0, 1], of the probability that the node is
            accepted *given that its parent is*.
        draws: what was drawn below nodes of the tree and below the root, where the rule weighs
            drafts against that. Not one is left out, whatever is left of them in the tree. Drafters
            without a model have none: a draft that is always the same is right with the LLM's
            probability for it, which is what equality with the LLM's token gives.
    """

    tree: TokenTree
    scores: tuple[float, ...]
    draws: tuple[NodeDraws, ...] = ()


class Drafter(Protocol):
    """Guesses what comes next. May be late, wrong or dead: that costs speed, nothing else.

    Attributes:
        name: shared by replicas of one draft model.
        is_away: it has nothing to say for now, whoever asks.
    """

    name: str

    @property
    def is_away(self) -> bool: ...

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        """Drafts by request id; a request may be left out."""

    def forget(self, request_id: int) -> None:
        """The request is over; drop what was kept for it."""


@dataclass(frozen=True)
class StepDraws:
    """What a step brought one request: every token that the LLM drew, kept or not.

    Attributes:
        token_ids: prompt and output, with what the step brought. A view: do not keep it.
        prompt_len: how many of them are prompt.
        root: which of them is the root of the step's tree.
        tree: the drafts below the root that the step carried.
        drawn_ids: the LLM's token after a node, or after the root (`CONTEXT`); those that a grammar
            forbids are left out.
        is_over: nothing more will come.
        drafters, is_shown: who may learn from it; as in `DraftTask`.
    """

    token_ids: Sequence[int]
    prompt_len: int
    root: int
    tree: TokenTree
    drawn_ids: Mapping[int, int]
    is_over: bool
    drafters: tuple[str, ...] | None = None
    is_shown: bool = False

    def allows(self, drafter: str) -> bool:
        """As `DraftTask.allows`."""
        return _allows(self.drafters, self.is_shown, drafter)


@runtime_checkable
class Learner(Protocol):
    """A drafter that learns from what the LLM says, for requests yet to come too."""

    def observe(self, steps: Sequence[StepDraws]) -> None:
        """A step is over; what it brought each request that lets the drafter be asked."""


@dataclass(frozen=True)
class TracedRow:
    """What a step was to one request whose trace is kept.

    Attributes:
        request_id: the manager's number for it.
        traceparent: as in `GenerationRequest`.
        num_tokens: of its known tokens that were run: one, or a chunk of its prompt.
        num_draft_nodes, num_accepted: below them, and how many of those were committed.
        num_committed: output tokens that the step brought it.
    """

    request_id: int
    traceparent: str
    num_tokens: int
    num_draft_nodes: int
    num_accepted: int
    num_committed: int


@dataclass(frozen=True)
class StepRecord:
    """One turn of the loop, for observers: raw counts and seconds, nothing derived.

    Attributes:
        num_rows, num_tokens, num_draft_nodes: of the step's batch.
        num_committed: output tokens that the step brought.
        drafted, accepted: nodes by drafter; a node counts for each of its proposers.
        accepted_depths: for each drafted row, how many of its draft nodes were accepted.
        queried_tokens, reused_tokens, preemptions, admitted_tokens: since the step before: tokens
            of requests that looked for KV to take over, tokens for which they found it, requests
            that had to give theirs up, tokens of requests that left the queue.
        phase_s: seconds by phase: schedule, draft, merge, step, verify, commit, emit.
        forward_s, sample_s: seconds inside the LLM's own process.
        depths: of the decoding requests in the step.
        noise_hits, noise_misses: positions whose noise the LLM had at hand, or had to compute.
        step_id, group: of the step's message.
        begun_s: when the step began, by the manager's clock; its phases follow one another.
        traced: the requests in the step whose traces are kept.
    """

    num_rows: int
    num_tokens: int
    num_draft_nodes: int
    num_committed: int
    drafted: Mapping[str, int]
    accepted: Mapping[str, int]
    accepted_depths: Sequence[int]
    queried_tokens: int
    reused_tokens: int
    preemptions: int
    phase_s: Mapping[str, float]
    forward_s: float
    sample_s: float
    depths: DepthCounts = field(default_factory=DepthCounts)
    noise_hits: int = 0
    noise_misses: int = 0
    step_id: int = 0
    group: int = 0
    begun_s: float = 0.0
    traced: Sequence[TracedRow] = ()
    admitted_tokens: int = 0


class Observer(Protocol):
    """Watches the manager; never in its way. The metrics exporter is one."""

    def request_finished(
        self,
        reason: FinishReason,
        prompt_tokens: int,
        output_tokens: int,
        arrival_s: float,
        first_token_s: float | None,
        finish_s: float,
        internal: bool,
    ) -> None: ...

    def step_done(self, record: StepRecord) -> None: ...

    def gauges(
        self,
        running: int,
        waiting: int,
        waiting_tokens: int,
        kv_blocks_used: int,
        kv_blocks_total: int,
    ) -> None: ...


class Clock(Protocol):
    """Monotonic seconds; handed in so that tests can advance it."""

    def __call__(self) -> float: ...
