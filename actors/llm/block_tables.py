"""Which KV slots belong to which request: the ranks' side of the block ledger, without tensors.

The manager decides; the tables only follow it and refuse what cannot be right. They are immutable:
`after(message)` gives the tables that follow a message and leaves these as they are, so a message
that is refused half way has changed nothing.

Slot i of block b is cache slot b * block_tokens + i. Place p of a request is the p-th slot of its
blocks; committed token p has its KV in place p.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from actors.decoder.kv_cache import SlotMoves, Slots
from actors.errors import ProtocolError
from actors.messages import KVCommit, NewRequest, Row, StepMessage
from actors.tree import CONTEXT, TokenTree

_FREE = -1


@dataclass(frozen=True)
class RequestKV:
    """One request's share of the cache.

    Attributes:
        new: how the request was announced.
        slots: [granted places] cache slots, in place order.
        committed: places that hold a contiguous run of tokens.
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
        owners: [num_blocks] request that holds each block; -1 is free.
        requests: by request id.
    """

    block_tokens: int
    owners: npt.NDArray[np.int64]
    requests: Mapping[int, RequestKV] = field(default_factory=dict)

    @classmethod
    def empty(cls, num_blocks: int, block_tokens: int) -> BlockTables:
        return cls(block_tokens, np.full(num_blocks, _FREE, dtype=np.int64))

    def after(self, message: StepMessage) -> tuple[BlockTables, SlotMoves, Slots]:
        """The tables that follow a message; commits, releases, new requests, grants, rows.

        Returns:
            The new tables, the moves that its commits ask for, and the slots newly granted.

        Raises:
            ProtocolError: the message asks for something that these tables do not allow.
        """
        requests = dict(self.requests)
        owners = self.owners.copy()
        moves = _apply_commits(requests, message.commits)
        for request_id in message.releases:
            _known(requests, request_id)
            owners[owners == request_id] = _FREE
            del requests[request_id]
        for new in message.new:
            if new.request_id in requests:
                raise ProtocolError(f"request {new.request_id} is known already")
            requests[new.request_id] = RequestKV(new, np.empty(0, dtype=np.int64))
        granted = [np.empty(0, dtype=np.int64)]
        in_step: set[int] = set()
        for row in message.rows:
            if row.request_id in in_step:
                raise ProtocolError(f"request {row.request_id} has two rows in one step")
            in_step.add(row.request_id)
            held = _known(requests, row.request_id)
            slots = self._grant(owners, row)
            granted.append(slots)
            requests[row.request_id] = _with_row(held, row, slots)
        return BlockTables(self.block_tokens, owners, requests), moves, np.concatenate(granted)

    def _grant(self, owners: npt.NDArray[np.int64], row: Row) -> Slots:
        for block in row.new_blocks:
            if not 0 <= block < len(owners):
                raise ProtocolError(f"block {block} is not one of the {len(owners)}")
            if owners[block] != _FREE:
                raise ProtocolError(f"block {block} belongs to request {owners[block]} already")
            owners[block] = row.request_id
        blocks = np.asarray(row.new_blocks, dtype=np.int64)
        return (blocks[:, None] * self.block_tokens + np.arange(self.block_tokens)).reshape(-1)


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
