"""A step message's rows as a batch for the forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from actors.decoder.attention_groups import Span
from actors.decoder.batch import StepBatch
from actors.llm.block_tables import RequestKV
from actors.messages import Row


def build_batch(
    rows: Sequence[Row],
    requests: Mapping[int, RequestKV],
    scratch_slot: int,
    device: torch.device,
    kept: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> StepBatch:
    """Lay the rows of a step out flat; there must be at least one.

    Args:
        requests: of the block tables after this step's grants.
        scratch_slot: a slot that is nobody's; the last of the cache.
        kept: by request id, for a row of which nodes were left out: those that were not, by their
            numbers in the row that the slots were granted for.
    """
    spans: list[Span] = []
    outputs = []
    first = 0
    for row in rows:
        places = requests[row.request_id].slots
        if row.request_id in kept:
            nodes = np.asarray(kept[row.request_id], dtype=np.int64)
            places = np.concatenate((places[: row.start], places[row.start + nodes]))
        spans.append(Span(row.tree, row.start, first, places))
        outputs.append(np.arange(first + row.first_output, first + len(row.tree)))
        first += len(row.tree)
    return StepBatch.of(spans, np.concatenate(outputs), scratch_slot + 1, device)
