"""A stand-in for the LLM ranks: any function of the token sequence, behind the same port.

It keeps what a KV cache would hold, slot by slot: a token, and a digest of that token and all
before it, since KV depends on those too. Each node's context is read back through the block table,
and a slot that was filled after other tokens than those that now stand before it is an error. So a
wrong commit, grant, release or reuse shows at once; what a rank refuses, this refuses too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from actors.errors import PeerError, PeerUnavailable, ProtocolError, StaleEpoch
from actors.messages import (
    LLMDescription,
    NewRequest,
    Row,
    RowResult,
    StepMessage,
    StepReply,
    TopLogprobs,
)
from actors.tree import CONTEXT

NextToken = Callable[[Sequence[int], NewRequest], int]
"""The token that follows a sequence (prompt and output), for a request's parameters."""


class _Slot(NamedTuple):
    """What one token leaves in the cache."""

    token: int
    digest: int


_NOTHING = _Slot(-1, 0)
"""What stands before the first token."""


def _after(before: _Slot, token: int) -> _Slot:
    return _Slot(token, hash((before.digest, token)))


@dataclass
class _Held:
    """What the stand-in keeps of one request."""

    new: NewRequest
    blocks: list[int] = field(default_factory=list)
    committed: int = 0
    last_row: Row | None = None


class ScriptedLLM:
    """Implements `ports.LLM` without a model.

    Args:
        next_token: the script.
        vocab_size, num_blocks, block_tokens, max_context_tokens: what it claims to be.

    Attributes:
        messages: every step message so far.
        fail_at: calls of `step` (from 0, over all epochs) at which the ranks die.
        num_deaths, num_restores: how often they died by `fail_at` or `die`, and came back for any
            reason: where the latter is more, a step was refused or went wrong.
        hold: if set, every step waits for this event.
        blocks_after_restore: blocks that the ranks come back with; None for as many as before.
    """

    def __init__(
        self,
        next_token: NextToken,
        *,
        vocab_size: int = 256,
        num_blocks: int = 256,
        block_tokens: int = 4,
        max_context_tokens: int = 512,
    ) -> None:
        self._next_token = next_token
        self._block_tokens = block_tokens
        self._description = LLMDescription(
            model_id="scripted",
            vocab_size=vocab_size,
            max_context_tokens=max_context_tokens,
            num_kv_blocks=num_blocks,
            kv_block_tokens=block_tokens,
            num_parameters=0,
            weights_hash="",
            dtype="none",
            device="none",
            backend="scripted",
            batch_invariant=True,
        )
        self.messages: list[StepMessage] = []
        self.fail_at: set[int] = set()
        self.hold: asyncio.Event | None = None
        self.blocks_after_restore: int | None = None
        self.num_deaths = 0
        self.num_restores = 0
        self._num_calls = 0
        self._death = asyncio.Event()
        self._epoch = -1
        self._next_step = 0
        self._reset()

    async def describe(self) -> LLMDescription:
        return self._description

    async def step(self, message: StepMessage) -> StepReply:
        """Run the script over one step; refuses what a rank would refuse."""
        self._num_calls += 1
        if self._death.is_set() or self._num_calls - 1 in self.fail_at:
            self.die()
            raise PeerUnavailable("the scripted LLM is dead")
        self.messages.append(message)
        self._enter(message)
        results = tuple(self._run(row) for row in message.rows)
        if self.hold is not None:
            await self.hold.wait()
        else:
            await asyncio.sleep(0)
        with_outputs = tuple(result for result in results if result.drawn_ids)
        return StepReply(message.epoch, message.step_id, with_outputs, forward_s=1e-3)

    async def lost(self) -> PeerError:
        await self._death.wait()
        return PeerUnavailable("the scripted LLM is dead")

    def die(self) -> None:
        """The ranks' processes end, whatever they are at."""
        self.num_deaths += not self._death.is_set()
        self._death.set()

    async def restore(self) -> None:
        self.num_restores += 1
        self._death.clear()
        self._reset()
        if self.blocks_after_restore is not None:
            self._description = replace(self._description, num_kv_blocks=self.blocks_after_restore)

    @property
    def held(self) -> dict[int, int]:
        """Number of blocks held, by request."""
        return {request_id: len(held.blocks) for request_id, held in self._held.items()}

    def _reset(self) -> None:
        self._held: dict[int, _Held] = {}
        self._slots: dict[int, _Slot] = {}
        self._next_step = 0

    def _enter(self, message: StepMessage) -> None:
        if message.epoch < self._epoch:
            raise StaleEpoch(f"epoch {message.epoch}, now at {self._epoch}")
        if message.epoch > self._epoch:
            self._epoch = message.epoch
            self._reset()
        if message.step_id != self._next_step:
            raise ProtocolError(f"step {message.step_id}, expected {self._next_step}")
        self._next_step += 1
        for commit in message.commits:
            self._commit(commit.request_id, commit.kept_nodes)
        for request_id in message.trims:
            self._trim(self._held[request_id])
        for request_id in message.releases:
            del self._held[request_id]
        for new in message.new:
            if new.request_id in self._held:
                raise ProtocolError(f"request {new.request_id} is known already")
            num_reused = len(new.reused_blocks) * self._block_tokens
            self._held[new.request_id] = _Held(new, list(new.reused_blocks), num_reused)

    def _commit(self, request_id: int, kept_nodes: Sequence[int]) -> None:
        held = self._held[request_id]
        row = held.last_row
        if row is None:
            raise ProtocolError(f"request {request_id} has no row to commit")
        kept = [self._slots[self._place(held, row.start + node)] for node in kept_nodes]
        for offset, slot in enumerate(kept):
            self._slots[self._place(held, row.start + offset)] = slot
        held.committed = row.start + len(kept_nodes)
        held.last_row = None

    def _trim(self, held: _Held) -> None:
        if held.last_row is not None:
            raise ProtocolError(f"request {held.new.request_id} has a row that is not committed")
        del held.blocks[-(-held.committed // self._block_tokens) :]

    def _run(self, row: Row) -> RowResult:
        held = self._held[row.request_id]
        prefix = self._write(held, row)
        drawn, logprobs, top = [], [], []
        for node in range(row.first_output, len(row.tree)):
            token = self._next_token([*prefix, *row.tree.path_tokens(node)], held.new)
            drawn.append(token)
            logprobs.append(-float(node))
            top.append(TopLogprobs((token,), (-float(node),)))
        wants = held.new.num_logprobs is not None
        return RowResult(
            row.request_id,
            tuple(drawn),
            tuple(logprobs) if wants else (),
            tuple(top) if wants else (),
        )

    def _write(self, held: _Held, row: Row) -> list[int]:
        if row.start != held.committed:
            raise ProtocolError(f"row starts at {row.start}, committed are {held.committed}")
        for other in self._held.values():
            if set(row.new_blocks) & set(other.blocks):
                raise ProtocolError("a block is granted twice")
        if not all(block < self._description.num_kv_blocks for block in row.new_blocks):
            raise ProtocolError("a block is granted that is not there")
        held.blocks.extend(row.new_blocks)
        prefix = self._read(held, row.start)
        written: list[_Slot] = []
        for node, (token, parent) in enumerate(
            zip(row.tree.token_ids, row.tree.parents, strict=True)
        ):
            before = prefix[-1] if parent == CONTEXT else written[parent]
            written.append(_after(before, token))
            self._write_slot(held, row.start + node, written[-1])
        held.last_row = row
        return [slot.token for slot in prefix[1:]]

    def _read(self, held: _Held, num_places: int) -> list[_Slot]:
        """The slots of the request's first places, after `_NOTHING`."""
        slots = [_NOTHING]
        for place in range(num_places):
            slot = self._slots[self._place(held, place)]
            if slot != _after(slots[-1], slot.token):
                raise ProtocolError(f"place {place} of request {held.new.request_id} is not its")
            slots.append(slot)
        return slots

    def _write_slot(self, held: _Held, place: int, slot: _Slot) -> None:
        index = self._place(held, place)
        block = index // self._block_tokens
        if sum(block in other.blocks for other in self._held.values()) > 1:
            raise ProtocolError(f"block {block} is written to and shared")
        self._slots[index] = slot

    def _place(self, held: _Held, place: int) -> int:
        """The slot of one of the request's places."""
        index = place // self._block_tokens
        if index >= len(held.blocks):
            raise ProtocolError(f"slot {place} lies beyond the granted blocks")
        return held.blocks[index] * self._block_tokens + place % self._block_tokens
