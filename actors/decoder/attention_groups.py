"""How the rows of a step meet their keys in padded matrices: attention by batched products.

Attention works on *entries*: a chain of keys in position order, and some rows that lie on it. A run
of tokens is one entry (long ones are cut to `MAX_ENTRY_ROWS` rows); a tree that branches is one
entry for each leaf, whose keys are the committed places and then the path down to that leaf, and
each node is a row of the first entry that passes through it.

So a key's index in its entry *is* its position: visibility is `key <= position`, a sliding window
is by depth, and a node meets the very keys at the very places that it would meet if its path had
been decoded token by token. That is what makes a row's result independent of the tree around it to
the last bit; a tree mask over slots leaves holes that change the order of the sums.

Entries of similar size are padded and run together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from actors.decoder.kv_cache import Slots
from actors.tree import TokenTree

MAX_ENTRY_ROWS = 64
_MIN_ENTRY_ROWS = 2
"""Products with a single row take another kernel, which sums in another order."""
_KEY_MULTIPLE = 16
_SMALLEST_KEY_BUCKET = 256
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Span:
    """One sequence's rows in a step.

    Attributes:
        tree: hangs below the sequence's committed places.
        start: how many those are.
        first_row: of the step's flat rows.
        places: [>= start + nodes] the sequence's slots in place order, those of the nodes last.
        first_node: the tree's nodes from here on are the rows; the keys and values of those before
            stand in their places already.
    """

    tree: TokenTree
    start: int
    first_row: int
    places: Slots
    first_node: int = 0

    @property
    def num_rows(self) -> int:
        return len(self.tree) - self.first_node


@dataclass(frozen=True)
class AttentionGroup:
    """Entries that are attended together: B entries of R rows and L keys, padding included.

    Attributes:
        rows: [B * R] the batch's rows; None if they are the whole batch in order.
        positions: [B, R] of the rows.
        keys: [B * L] cache slots; a slice where one entry's keys lie side by side.
        num_entries, num_rows, num_keys: B, R, L.
    """

    rows: Tensor | None
    positions: Tensor
    keys: Tensor | slice
    num_entries: int
    num_rows: int
    num_keys: int
    _masks: dict[tuple[int | None, int, int, torch.dtype], Tensor] = field(default_factory=dict)

    def mask(
        self, window: int | None, kv_heads: int, queries_per_key: int, dtype: torch.dtype
    ) -> Tensor:
        """[kv_heads * B, R * queries_per_key, L]: 0 where a row sees a key, -inf elsewhere.

        Args:
            window: a row sees so many positions, its own included; None for all.
            queries_per_key: query heads that share a key head; they are folded into the rows.
        """
        wanted = (window, kv_heads, queries_per_key, dtype)
        mask = self._masks.get(wanted)
        if mask is None:
            mask = self._masks[wanted] = self._make_mask(*wanted)
        return mask

    def _make_mask(
        self, window: int | None, kv_heads: int, queries_per_key: int, dtype: torch.dtype
    ) -> Tensor:
        keys = torch.arange(self.num_keys, device=self.positions.device)
        positions = self.positions[:, :, None, None]  # [B, R, 1, 1]
        hidden = keys > positions
        if window is not None:
            hidden |= keys <= positions - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        mask.masked_fill_(hidden, -torch.inf)
        size = (kv_heads, self.num_entries, self.num_rows, queries_per_key, self.num_keys)
        return mask.expand(size).reshape(kv_heads * self.num_entries, -1, self.num_keys)


@dataclass(frozen=True)
class _Entry:
    rows: _Ints
    positions: _Ints
    keys: Slots


def group_attention(
    spans: Sequence[Span], num_slots: int, device: torch.device
) -> tuple[tuple[AttentionGroup, ...], Tensor | None]:
    """Lay out the attention of a step.

    Args:
        spans: all of its sequences.
        num_slots: of the cache.

    Returns:
        The groups, which together hold every row; and [N] where in their rows, one after another,
        each row is, or None if they are in order.
    """
    entries = [entry for span in spans for entry in _entries(span)]
    num_rows = sum(span.num_rows for span in spans)
    return _group(entries, num_rows, num_slots, device)


def _entries(span: Span) -> Iterator[_Entry]:
    """A row's chains of keys, with the rows that each brings in."""
    start, places = span.start, span.places
    for nodes, num_new in _paths(span.tree, span.first_node):
        end = len(nodes)
        for begin in range(end - num_new, end, MAX_ENTRY_ROWS):
            upto = min(begin + MAX_ENTRY_ROWS, end)
            yield _Entry(
                span.first_row - span.first_node + nodes[begin:upto],
                np.arange(start + begin, start + upto),
                np.concatenate((places[:start], places[start + nodes[:upto]])),
            )


def _paths(tree: TokenTree, first_node: int) -> Iterator[tuple[_Ints, int]]:
    """The path to each leaf, and how many nodes at its end are rows that are on no earlier path."""
    if tree.is_chain:
        yield np.arange(len(tree)), len(tree) - first_node
        return
    seen = set(range(first_node))
    for leaf in tree.leaves():
        path = tree.path(leaf)
        num_new = sum(node not in seen for node in path)
        seen.update(path)
        yield np.asarray(path, dtype=np.int64), num_new


def _group(
    entries: Iterable[_Entry], num_rows: int, num_slots: int, device: torch.device
) -> tuple[tuple[AttentionGroup, ...], Tensor | None]:
    """Run entries of similar size together: within a power of two in rows and in keys."""
    by_size: dict[tuple[int, int], list[_Entry]] = {}
    for entry in entries:
        num_keys = max(len(entry.keys), _SMALLEST_KEY_BUCKET)
        size = (len(entry.rows) - 1).bit_length(), (num_keys - 1).bit_length()
        by_size.setdefault(size, []).append(entry)
    padded = [_pad_rows(group) for group in by_size.values()]
    all_rows = np.concatenate([rows.reshape(-1) for rows, _ in padded])
    in_order = np.array_equal(all_rows, np.arange(num_rows))
    order = np.empty(num_rows, dtype=np.int64)
    order[all_rows] = np.arange(len(all_rows))
    groups = []
    for group, (rows, positions) in zip(by_size.values(), padded, strict=True):
        num_keys = max(len(entry.keys) for entry in group)
        num_keys += -num_keys % _KEY_MULTIPLE
        groups.append(
            AttentionGroup(
                None if in_order and len(padded) == 1 else _tensor(rows.reshape(-1), device),
                _tensor(positions, device),
                _key_slots([entry.keys for entry in group], num_keys, num_slots, device),
                rows.shape[0],
                rows.shape[1],
                num_keys,
            )
        )
    return tuple(groups), None if in_order else _tensor(order, device)


def _pad_rows(group: Sequence[_Entry]) -> tuple[_Ints, _Ints]:
    """[B, R] rows and positions; the last row of an entry is repeated to fill it up."""
    longest = max(_MIN_ENTRY_ROWS, *(len(entry.rows) for entry in group))
    pick = [np.minimum(np.arange(longest), len(entry.rows) - 1) for entry in group]
    rows = [entry.rows[index] for entry, index in zip(group, pick, strict=True)]
    positions = [entry.positions[index] for entry, index in zip(group, pick, strict=True)]
    return np.stack(rows), np.stack(positions)


def _key_slots(
    keys: Sequence[Slots], num_keys: int, num_slots: int, device: torch.device
) -> Tensor | slice:
    """[B * L] slots, each entry filled up with slots that no row will see."""
    if len(keys) == 1:
        first = int(keys[0][0])
        side_by_side = np.array_equal(keys[0], np.arange(first, first + len(keys[0])))
        if side_by_side and first + num_keys <= num_slots:
            return slice(first, first + num_keys)
    padded = [np.pad(entry, (0, num_keys - len(entry)), mode="edge") for entry in keys]
    return _tensor(np.concatenate(padded), device)


def _tensor(array: _Ints, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
