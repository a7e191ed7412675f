"""Which KV slots belong to which request: the ranks' side of the block ledger, without tensors.

The manager decides; the tables only follow it and refuse what cannot be right. They are immutable:
`after(message)` gives the tables that follow a message and leaves these as they are, so a message
that is refused half way has changed nothing.

A request's first blocks may be such as others filled. A block that several requests hold is never
written to, so sharing needs no copies.

Slot i of block b is cache slot b * block_tokens + i. Place p of a request is the p-th slot of its
blocks; committed token p has its KV in place p.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from actors.decoder.kv_cache import SlotMoves, Slots
from actors.errors import ProtocolError
from actors.messages import KVCommit, NewRequest, Row, StepMessage
from actors.tree import CONTEXT, TokenTree

_NEVER_FILLED = -1


@dataclass(frozen=True)
class RequestKV:
    """One request's share of the cache.

    Attributes:
        new: how the request was announced.
        slots: [granted places] cache slots, in place order.
        committed: places that hold a contiguous run of tokens, reused ones included.
        last_row: the row whose nodes a commit may keep; None once it was committed.
    """

    new: NewRequest
    slots: Slots
    committed: int = 0
    last_row: Row | None = None


@dataclass(frozen=True)
class BlockTables:
    """All requests of an epoch.

    Attributes:
        block_tokens: slots of a block.
        holders: [num_blocks] how many requests hold each block; -1: none ever did.
        requests: by request id.
    """

    block_tokens: int
    holders: npt.NDArray[np.int64]
    requests: Mapping[int, RequestKV] = field(default_factory=dict)

    @classmethod
    def empty(cls, num_blocks: int, block_tokens: int) -> BlockTables:
        return cls(block_tokens, np.full(num_blocks, _NEVER_FILLED, dtype=np.int64))

    def after(self, message: StepMessage) -> tuple[BlockTables, SlotMoves, Slots]:
        """The tables that follow a message; commits, trims, releases, new requests, grants, rows.

        Returns:
            The new tables, the moves that its commits ask for, and the slots newly granted.

        Raises:
            ProtocolError: the message asks for something that these tables do not allow.
        """
        requests = dict(self.requests)
        holders = self.holders.copy()
        moves = _apply_commits(requests, message.commits)
        for request_id in message.trims:
            requests[request_id] = self._trim(holders, _known(requests, request_id))
        for request_id in message.releases:
            holders[self._blocks(_known(requests, request_id).slots)] -= 1
            del requests[request_id]
        for new in message.new:
            if new.request_id in requests:
                raise ProtocolError(f"request {new.request_id} is known already")
            requests[new.request_id] = self._admit(holders, new)
        granted = [np.empty(0, dtype=np.int64)]
        in_step: set[int] = set()
        for row in message.rows:
            if row.request_id in in_step:
                raise ProtocolError(f"request {row.request_id} has two rows in one step")
            in_step.add(row.request_id)
            held = _known(requests, row.request_id)
            slots = self._grant(holders, row)
            granted.append(slots)
            requests[row.request_id] = held = _with_row(held, row, slots)
            written = held.slots[row.start : row.start + len(row.tree)] // self.block_tokens
            if holders[written].max(initial=1) > 1:
                raise ProtocolError(f"request {row.request_id} writes into a shared block")
        return BlockTables(self.block_tokens, holders, requests), moves, np.concatenate(granted)

    def _trim(self, holders: npt.NDArray[np.int64], held: RequestKV) -> RequestKV:
        if held.last_row is not None:
            raise ProtocolError(f"request {held.new.request_id} has a row that is not committed")
        kept = -(-held.committed // self.block_tokens) * self.block_tokens
        holders[self._blocks(held.slots[kept:])] -= 1
        return replace(held, slots=held.slots[:kept])

    def _admit(self, holders: npt.NDArray[np.int64], new: NewRequest) -> RequestKV:
        if len(set(new.reused_blocks)) < len(new.reused_blocks):
            raise ProtocolError(f"request {new.request_id} reuses a block twice")
        for block in new.reused_blocks:
            self._require_block(block)
            if holders[block] == _NEVER_FILLED:
                raise ProtocolError(f"block {block} was never filled")
            holders[block] += 1
        slots = self._slots(new.reused_blocks)
        return RequestKV(new, slots, committed=len(slots))

    def _grant(self, holders: npt.NDArray[np.int64], row: Row) -> Slots:
        for block in row.new_blocks:
            self._require_block(block)
            if holders[block] > 0:
                raise ProtocolError(f"block {block} is held already")
            holders[block] = 1
        return self._slots(row.new_blocks)

    def _require_block(self, block: int) -> None:
        if not 0 <= block < len(self.holders):
            raise ProtocolError(f"block {block} is not one of the {len(self.holders)}")

    def _slots(self, blocks: Sequence[int]) -> Slots:
        firsts = np.asarray(blocks, dtype=np.int64)[:, None] * self.block_tokens
        return (firsts + np.arange(self.block_tokens)).reshape(-1)

    def _blocks(self, slots: Slots) -> Slots:
        """The blocks of slots that fill whole blocks."""
        return slots[:: self.block_tokens] // self.block_tokens


def _known(requests: Mapping[int, RequestKV], request_id: int) -> RequestKV:
    try:
        return requests[request_id]
    except KeyError:
        raise ProtocolError(f"request {request_id} is unknown") from None


def _with_row(held: RequestKV, row: Row, granted: Slots) -> RequestKV:
    slots = np.concatenate((held.slots, granted)) if len(granted) else held.slots
    if not 0 <= row.start <= held.committed:
        raise ProtocolError(
            f"request {row.request_id} starts at {row.start}, {held.committed} are committed"
        )
    if row.start + len(row.tree) > len(slots):
        raise ProtocolError(
            f"request {row.request_id} needs {row.start + len(row.tree)} slots, has {len(slots)}"
        )
    # Of a row that is never committed nothing counts as written.
    return replace(held, slots=slots, committed=row.start, last_row=row)


def _apply_commits(requests: dict[int, RequestKV], commits: Iterable[KVCommit]) -> SlotMoves:
    source = [np.empty(0, dtype=np.int64)]
    target = [np.empty(0, dtype=np.int64)]
    for commit in commits:
        held = _known(requests, commit.request_id)
        if held.last_row is None:
            raise ProtocolError(f"request {commit.request_id} has no row to commit")
        kept = _kept_path(held.last_row.tree, commit)
        places = np.arange(len(kept))
        moved = kept != places
        start = held.last_row.start
        source.append(held.slots[start + kept[moved]])
        target.append(held.slots[start + places[moved]])
        requests[commit.request_id] = replace(held, committed=start + len(kept), last_row=None)
    return SlotMoves(np.concatenate(source), np.concatenate(target))


def _kept_path(tree: TokenTree, commit: KVCommit) -> Slots:
    parent = CONTEXT
    for node in commit.kept_nodes:
        if not 0 <= node < len(tree) or tree.parents[node] != parent:
            raise ProtocolError(f"request {commit.request_id}: kept nodes are not a path")
        parent = node
    return np.asarray(commit.kept_nodes, dtype=np.int64)
