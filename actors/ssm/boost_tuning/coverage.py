"""Coverage: how often the LLM's most probable word is among a draft's first 1 to 5.

That is the chance that a tree whose nodes have so many children holds the token that greedy
decoding will take. Measured along the records' own answers, position by position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from actors.ssm.boost_tuning.batches import pad, padded_groups
from actors.ssm.boost_tuning.records import Record
from actors.ssm.model import DraftModel

WIDEST = 5
ROWS_AT_ONCE = 512
Shares = npt.NDArray[np.float64]


@torch.no_grad()
def coverage(model: DraftModel, records: Sequence[Record]) -> Shares:
    """[5] shares of places: top 1, top 2, … top 5; zeros where there is no place."""
    hits = np.zeros(WIDEST)
    num_places = 0
    head = model.head().bfloat16()
    for group in padded_groups(records):
        found = _hits(model, head, group, WIDEST)
        num_places += len(found)
        hits[: found.shape[-1]] += found.sum(0).numpy()
    shares: Shares = np.cumsum(hits) / max(num_places, 1)
    return shares


@torch.no_grad()
def first_hits(model: DraftModel, records: Sequence[Record]) -> list[npt.NDArray[np.bool_]]:
    """For each record [answer] whether the draft's first word is the LLM's most probable one."""
    found: dict[int, npt.NDArray[np.bool_]] = {}
    head = model.head().bfloat16()
    for group in padded_groups(records):
        hits = _hits(model, head, group, 1)[:, 0].numpy()
        ends = np.cumsum([record.answer_len for record in group])
        found |= zip(map(id, group), np.split(hits, ends[:-1]), strict=True)
    return [found[id(record)] for record in records]


def _hits(model: DraftModel, head: Tensor, group: Sequence[Record], widest: int) -> Tensor:
    """[places, ranks] bool: which of the draft's best words is the LLM's, if one is."""
    token_ids, places = pad(group)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(token_ids).flatten(0, 1)[places]
    wanted = torch.from_numpy(np.concatenate([record.top_ids[:, 0] for record in group]))
    found = []
    for first in range(0, len(wanted), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        logits = (hidden[part].bfloat16() @ head.T).float() + model.bias
        best = model.cut_ids[logits.topk(min(widest, logits.shape[-1]), -1).indices]
        found.append(best == wanted[part, None])
    return torch.cat(found)


def coverage_by_source(model: DraftModel, records: Sequence[Record]) -> dict[str, Shares]:
    """Coverage of each source by itself, sorted by name."""
    sources = sorted({record.source for record in records})
    return {
        source: coverage(model, [record for record in records if record.source == source])
        for source in sources
    }
