"""What the scheduler decides before a step: whose turn it is, and which KV blocks go with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from actors.request_manager.request import Request, State


@dataclass(frozen=True)
class Turn:
    """A request's part in one step, before drafts. What it tells holds until the step is committed.

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
        reused_blocks: blocks taken over that the ranks do not know of yet.
    """

    turn: Turn
    new_blocks: tuple[int, ...]
    num_drafts: int = 0
    reused_blocks: tuple[int, ...] = ()


class Returned(NamedTuple):
    """Requests by what the ranks have to take back: blocks granted for drafts, or everything."""

    trims: tuple[int, ...] = ()
    releases: tuple[int, ...] = ()


@dataclass
class AdmissionCounts:
    """What happened to requests between two steps.

    Attributes:
        admitted_tokens: tokens of those that left the queue.
        queried_tokens: tokens of those of them that looked for blocks to take over.
        reused_tokens: tokens whose KV they took over.
        preemptions: requests that had to give up their KV.
    """

    admitted_tokens: int = 0
    queried_tokens: int = 0
    reused_tokens: int = 0
    preemptions: int = 0
