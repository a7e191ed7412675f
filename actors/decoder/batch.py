"""One step as flat tensors: what the forward pass sees of sequences, trees and slots.

Tokens of all sequences stand one after another. How rows find their keys is laid out twice, each
when it is first asked for: as padded groups for batched products
(`actors.decoder.attention_groups`), and as plain arrays for kernels that walk each row's path
(`RowLayout`). Assumes nothing about the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from actors.decoder.attention_groups import AttentionGroup, Span, group_attention

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowLayout:
    """The rows of a step for kernels that take them one by one; int64 on the CPU.

    Attributes:
        spans: [S, 7] of each sequence first row, nodes, committed places, 1 for a chain, the first
            node that is a row, and where its places and its nodes begin.
        places: slots of each sequence's committed places, then of its nodes.
        parents: the node before each node, within its sequence; -1 for the context.
        depths: nodes before each node on its path.
    """

    spans: Tensor
    places: Tensor
    parents: Tensor
    depths: Tensor


@dataclass(frozen=True)
class StepBatch:
    """The tokens of one step, N in all.

    Attributes:
        token_ids, positions, slots: [N].
        outputs: [outputs] rows whose logits are wanted, in the order of sequences and nodes.
        spans: whose rows they are.
        num_slots: of the cache.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    outputs: Tensor
    spans: tuple[Span, ...]
    num_slots: int

    @classmethod
    def of(
        cls, spans: Sequence[Span], outputs: _Ints, num_slots: int, device: torch.device
    ) -> StepBatch:
        """Lay out the rows of all spans; there must be at least one."""
        return cls(
            _tensor([token for span in spans for token in _of_rows(span, span.tree.token_ids)]),
            _tensor(np.concatenate([_positions(span) for span in spans])),
            _tensor(np.concatenate([_slots(span) for span in spans])),
            _tensor(outputs),
            tuple(spans),
            num_slots,
        )._on(device)

    def paired(self) -> StepBatch:
        """The same with a lone row run twice, for kernels that sum in another order for one row
        than for several; the copy writes to the scratch slot."""
        if len(self.token_ids) > 1:
            return self
        span = self.spans[0]
        places = span.places[: span.start + len(span.tree)].copy()
        places[-1] = self.num_slots - 1
        pair = (span, replace(span, first_row=1, places=places))
        outputs = self.outputs.cpu().numpy()
        return StepBatch.of(pair, outputs, self.num_slots, self.token_ids.device)

    @cached_property
    def attention(self) -> tuple[tuple[AttentionGroup, ...], Tensor | None]:
        """See `group_attention`."""
        return group_attention(self.spans, self.num_slots, self.token_ids.device)

    @cached_property
    def layout(self) -> RowLayout:
        """The same for kernels that take rows one by one."""
        described, num_places, num_nodes = [], 0, 0
        for span in self.spans:
            size, chain = len(span.tree), span.tree.is_chain
            described.append(
                (span.first_row, size, span.start, chain, span.first_node, num_places, num_nodes)
            )
            num_places += span.start + size
            num_nodes += size
        places = [span.places[: span.start + len(span.tree)] for span in self.spans]
        return RowLayout(
            _tensor(described),
            _tensor(np.concatenate(places)),
            _tensor([parent for span in self.spans for parent in span.tree.parents]),
            _tensor([depth for span in self.spans for depth in span.tree.depths]),
        )

    def _on(self, device: torch.device) -> StepBatch:
        if device.type == "cpu":
            return self
        return replace(
            self,
            token_ids=self.token_ids.to(device),
            positions=self.positions.to(device),
            slots=self.slots.to(device),
            outputs=self.outputs.to(device),
        )


def _of_rows(span: Span, values: Sequence[int]) -> Sequence[int]:
    """Of one value a node, those of the rows."""
    return values[span.first_node :] if span.first_node else values


def _positions(span: Span) -> _Ints:
    return span.start + np.asarray(_of_rows(span, span.tree.depths), dtype=np.int64)


def _slots(span: Span) -> _Ints:
    return span.places[span.start + span.first_node : span.start + len(span.tree)]


def _tensor(values: Sequence[int] | Sequence[tuple[int, ...]] | _Ints) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.int64))
