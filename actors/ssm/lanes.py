"""The keys and values of one draft call: many sessions side by side, each in a lane of its own.

A lane begins with its session's cached positions (those within the attention window) and grows by
one *span* for each forward pass: first the session's tokens that are not cached yet, then one span
for each depth of the tree. Spans are padded to the widest lane. A row sees its lane's cached
positions, its ancestors and itself.

Rows of the network are flat, without padding; `Span` says where they stand in the lanes. Knows
nothing of weights or of what the tokens are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

_COLUMN_STEP = 64
"""Lanes have a multiple of this many columns: every new shape costs the CPU's kernels, which are
made for it, ten times the product itself."""

_HIDDEN = -1e4
"""Added to the attention score of what a row does not see; its exponential is 0 in every type."""


@dataclass(frozen=True)
class Span:
    """The rows of one forward pass, and their place in the lanes.

    Attributes:
        start, stop: columns of the lanes.
        counts: rows of each lane.
        positions: [rows] of the flat rows.
        padded: [lanes * width] flat row of each place; None where there is no padding.
        flat: [rows] place of each flat row; None where there is no padding.
        mask: [lanes, 1, width, columns] to add to attention scores.
    """

    start: int
    stop: int
    counts: tuple[int, ...]
    positions: Tensor
    padded: Tensor | None
    flat: Tensor | None
    mask: Tensor

    @property
    def width(self) -> int:
        return self.stop - self.start

    def pad(self, rows: Tensor) -> Tensor:
        """[rows, ...] to [lanes, width, ...]."""
        if self.padded is not None:
            rows = rows.index_select(0, self.padded)
        return rows.reshape(len(self.counts), self.width, *rows.shape[1:])

    def flatten(self, places: Tensor) -> Tensor:
        """[lanes, width, ...] to [rows, ...]."""
        rows = places.flatten(0, 1)
        return rows if self.flat is None else rows.index_select(0, self.flat)


class Lanes:
    """Keys, values and masks of one call.

    Args:
        contexts: each lane's cached keys and values, [layers, 2, heads, positions, head size].
        next_positions: the position that follows each lane's cached ones.
        window: how many positions a row sees, its own included; 0 is all.

    Attributes:
        keys_values: [layers, 2, lanes, heads, columns, head size]
    """

    def __init__(
        self, contexts: Sequence[Tensor], next_positions: Sequence[int], window: int
    ) -> None:
        num_layers, _, num_heads, _, head_dim = contexts[0].shape
        lengths = [context.shape[3] for context in contexts]
        self._used = max(lengths)
        self._window = window
        self._roots = torch.tensor(next_positions) - 1
        dtype, num_columns = contexts[0].dtype, _rounded_up(self._used + _COLUMN_STEP)
        # Zeros, not nothing: an unseen column weighs 0, and 0 times NaN is NaN.
        self.keys_values = torch.zeros(
            num_layers, 2, len(contexts), num_heads, num_columns, head_dim, dtype=dtype
        )
        for lane, (context, length) in enumerate(zip(contexts, lengths, strict=True)):
            self.keys_values[:, :, lane, :, :length] = context
        columns = torch.arange(num_columns)
        ends = torch.tensor(lengths)[:, None]
        self._visible = (columns < ends)[:, None]  # [lanes, rows of the last span, columns]
        self._column_positions = self._roots[:, None] + 1 - ends + columns  # [lanes, columns]
        self._shown = torch.zeros((), dtype=dtype)
        self._hidden = torch.full((), _HIDDEN, dtype=dtype)

    def tail(self, counts: Sequence[int]) -> Span:
        """A span for the next `counts` tokens of each session, one after another, at least one.

        The last one of each lane becomes the root of its tree.
        """
        width = max(counts)
        self._make_room(width)
        offsets = torch.arange(width)
        positions = self._roots[:, None] + 1 + offsets
        self._roots = self._roots + torch.tensor(counts)
        seen = self._visible[:, -1:].repeat(1, width, 1)
        return self._span(counts, positions, seen, offsets <= offsets[:, None])

    def children(self, counts: Sequence[int], parents: Sequence[int], depth: int) -> Span:
        """A span for nodes of one depth.

        Args:
            counts: nodes of each lane.
            parents: for each node, lane by lane, its parent's row within the last span's lane.
            depth: 1 for the root's children.
        """
        width = max(counts)
        self._make_room(width)
        index = torch.tensor(list(_padded_lists(parents, counts, width)))
        num_columns = self._visible.shape[2]
        seen = self._visible.gather(1, index[:, :, None].expand(-1, -1, num_columns))
        positions = (self._roots[:, None] + depth).expand(-1, width)
        return self._span(counts, positions, seen, torch.eye(width, dtype=torch.bool))

    def _make_room(self, width: int) -> None:
        """Add columns if the next `width` ones are not there."""
        missing = self._used + width - self._column_positions.shape[1]
        if missing > 0:
            more = _rounded_up(missing)
            self.keys_values = F.pad(self.keys_values, (0, 0, 0, more))
            self._visible = F.pad(self._visible, (0, more))
            self._column_positions = F.pad(self._column_positions, (0, more))

    def _span(self, counts: Sequence[int], positions: Tensor, seen: Tensor, own: Tensor) -> Span:
        """Args:
        positions: [lanes, width]
        seen: [lanes, width, columns], which of the columns before the span each row sees.
        own: [width, width], which of the span's.
        """
        width = positions.shape[1]
        start, self._used = self._used, self._used + width
        seen[:, :, start : self._used] = own
        self._visible = seen
        self._column_positions[:, start : self._used] = positions
        visible = self._visible
        if self._window:
            oldest = positions[:, :, None] - self._window
            visible = visible & (self._column_positions[:, None] > oldest)
        mask = torch.where(visible, self._shown, self._hidden)[:, None]
        padded, flat = (None, None) if min(counts) == width else _places(counts, width)
        rows = positions.reshape(-1)
        rows = rows if flat is None else rows.index_select(0, flat)
        return Span(start, self._used, tuple(counts), rows, padded, flat, mask)


def _rounded_up(num_columns: int) -> int:
    return -(-num_columns // _COLUMN_STEP) * _COLUMN_STEP


def _places(counts: Sequence[int], width: int) -> tuple[Tensor, Tensor]:
    """`Span.padded` and `Span.flat`; padding repeats flat row 0."""
    rows = range(sum(counts))
    padded = [row for lane in _padded_lists(rows, counts, width) for row in lane]
    flat = [lane * width + row for lane, count in enumerate(counts) for row in range(count)]
    return torch.tensor(padded), torch.tensor(flat)


def _padded_lists(values: Sequence[int], counts: Sequence[int], width: int) -> Iterator[list[int]]:
    """The values of each lane, filled up with zeros."""
    for end, count in zip(accumulate(counts), counts, strict=True):
        yield [*values[end - count : end], *[0] * (width - count)]
