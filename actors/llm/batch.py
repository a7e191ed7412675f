"""One step as flat tensors: what the model code sees of requests, trees and blocks.

Tokens of all requests stand one after another. How rows find their keys is laid out twice, each
when it is first asked for: as padded groups for batched products (`actors.llm.attention_groups`),
and as plain arrays for kernels that walk each row's path (`RowLayout`). Assumes nothing about the
model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from actors.llm.attention_groups import AttentionGroup, Span, group_attention
from actors.llm.block_tables import RequestKV
from actors.messages import Row

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowLayout:
    """The rows of a step for kernels that take them one by one; int64 on the CPU.

    Attributes:
        requests: [R, 5] first row, number of rows, committed places, 1 for a chain, and where the
            request's places begin.
        places: slots of each request's committed places, then of its nodes.
        parents: [N] the node before each, within its request; -1 for the context.
        depths: [N] nodes before each on its path.
    """

    requests: Tensor
    places: Tensor
    parents: Tensor
    depths: Tensor


@dataclass(frozen=True)
class StepBatch:
    """The tokens of one step, N in all; never fewer than two.

    A lone token is run twice (the copy writes to the scratch slot): kernels for one row sum in
    another order than those for several.

    Attributes:
        token_ids, positions, slots: [N].
        outputs: [outputs] rows whose logits are wanted, in the order of requests and nodes.
        spans: whose rows they are.
        num_slots: of the cache.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    outputs: Tensor
    spans: tuple[Span, ...]
    num_slots: int

    @cached_property
    def attention(self) -> tuple[tuple[AttentionGroup, ...], Tensor | None]:
        """See `group_attention`."""
        return group_attention(self.spans, self.num_slots, self.token_ids.device)

    @cached_property
    def layout(self) -> RowLayout:
        """The same for kernels that take rows one by one."""
        spans = self.spans
        ends = [span.row.start + len(span.row.tree) for span in spans]
        begins = np.cumsum([0, *ends[:-1]])
        requests = [
            (span.first_row, len(span.row.tree), span.row.start, span.row.tree.is_chain, begin)
            for span, begin in zip(spans, begins, strict=True)
        ]
        places = [span.places[:end] for span, end in zip(spans, ends, strict=True)]
        return RowLayout(
            torch.tensor(requests, dtype=torch.int64),
            torch.from_numpy(np.concatenate(places)),
            torch.tensor([parent for span in spans for parent in span.row.tree.parents]),
            torch.tensor([depth for span in spans for depth in span.row.tree.depths]),
        )


def build_batch(
    rows: Sequence[Row],
    requests: Mapping[int, RequestKV],
    scratch_slot: int,
    device: torch.device,
) -> StepBatch:
    """Lay the rows of a step out flat; there must be at least one.

    Args:
        requests: of the block tables after this step's grants.
        scratch_slot: a slot that is nobody's; the last of the cache.
    """
    spans: list[Span] = []
    outputs: list[_Ints] = []
    first = 0
    for row in rows:
        spans.append(Span(row, first, requests[row.request_id].slots))
        outputs.append(np.arange(first + row.first_output, first + len(row.tree)))
        first += len(row.tree)
    if first == 1:
        spans.append(_copy_of_lone(spans[0], scratch_slot))
    return StepBatch(
        _tensor([token for span in spans for token in span.row.tree.token_ids], device),
        _tensor(np.concatenate([_positions(span.row) for span in spans]), device),
        _tensor(np.concatenate([_slots(span) for span in spans]), device),
        _tensor(np.concatenate(outputs), device),
        tuple(spans),
        scratch_slot + 1,
    )


def _copy_of_lone(span: Span, scratch_slot: int) -> Span:
    places = span.places[: span.row.start + 1].copy()
    places[-1] = scratch_slot
    return Span(span.row, 1, places)


def _positions(row: Row) -> _Ints:
    return row.start + np.asarray(row.tree.depths, dtype=np.int64)


def _slots(span: Span) -> _Ints:
    return span.places[span.row.start : span.row.start + len(span.row.tree)]


def _tensor(values: Sequence[int] | _Ints, device: torch.device) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(device)
