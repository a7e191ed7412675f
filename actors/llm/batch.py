"""A step message's rows as a batch for the forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
) -> StepBatch:
    """Lay the rows of a step out flat; there must be at least one.

    Args:
        requests: of the block tables after this step's grants.
        scratch_slot: a slot that is nobody's; the last of the cache.
    """
    spans: list[Span] = []
    outputs = []
    first = 0
    for row in rows:
        spans.append(Span(row.tree, row.start, first, requests[row.request_id].slots))
        outputs.append(np.arange(first + row.first_output, first + len(row.tree)))
        first += len(row.tree)
    return StepBatch.of(spans, np.concatenate(outputs), scratch_slot + 1, device)
