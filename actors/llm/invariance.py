"""Whether a row's logits and KV are bit for bit the same whatever else is in the step.

A matter of kernels, types and machines, so it is tried out rather than assumed: one text is run as
a whole, then again in steps of 1, 2, 8 and 32 rows, alone and beside another request, and as the
path through a tree whose other nodes stand between. Logits are compared, and the KV that was
written, since requests that begin alike share it however it came about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from actors.decoder.kv_cache import KVCache
from actors.llm.batch import build_batch
from actors.llm.block_tables import RequestKV
from actors.llm.loading import LoadedModel
from actors.messages import NewRequest, Row
from actors.sampling import SamplingParams
from actors.tree import TokenTree

_NUM_TOKENS = 96
_STEP_ROWS = (1, 2, 8, 32, 1, 2)
_TREE_DEPTH = 6
_MAIN, _NEIGHBOUR = 0, 1


def is_batch_invariant(loaded: LoadedModel) -> bool:
    """Try it; takes the time of a few prefills of a hundred tokens. False for tiny contexts."""
    if loaded.max_context_tokens < _NUM_TOKENS:
        return False
    vocab_size = loaded.model.vocab_size
    ids = [(place * place + 7919 * place + 5) % vocab_size for place in range(_NUM_TOKENS)]
    cache = KVCache(loaded.model.kv_shape, 2, _NUM_TOKENS, loaded.dtype, loaded.device)
    logits = _forward(loaded, cache, [_chain(_MAIN, 0, ids)])
    kv = cache.data[:, :, :, :_NUM_TOKENS].clone()
    # Every step is run whatever came of those before: all ranks of a split LLM take it together.
    verdicts = [
        torch.equal(step.logits, logits[step.start : step.start + len(step.slots)])
        and torch.equal(step.kv, kv[:, :, :, step.start : step.start + len(step.slots)])
        for beside in (False, True)
        for step in _in_steps(loaded, cache, ids, beside)
    ]
    return bool(loaded.peers.least(all(verdicts)))


@dataclass(frozen=True)
class _Step:
    """What a step made of a few tokens of the text, from `start` on."""

    start: int
    slots: Sequence[int]
    logits: Tensor
    kv: Tensor


def _in_steps(
    loaded: LoadedModel, cache: KVCache, ids: Sequence[int], beside: bool
) -> Iterator[_Step]:
    """The text once more, step by step."""
    cache.data.zero_()
    start = 0
    for num_rows in _STEP_ROWS:
        rows = [_chain(_MAIN, start, ids[start : start + num_rows])]
        if beside:
            rows.insert(0, _chain(_NEIGHBOUR, 0, ids[-3:]))
        logits = _forward(loaded, cache, rows)[-num_rows:]
        slots = list(range(start, start + num_rows))
        yield _Step(start, slots, logits, cache.data[:, :, :, slots])
        start += num_rows
    path = ids[start : start + _TREE_DEPTH]
    tree = TokenTree.from_paths(_with_siblings(path, loaded.model.vocab_size))
    nodes = [node for node in range(len(tree)) if _is_on(path, tree.path_tokens(node))]
    logits = _forward(loaded, cache, [Row(_MAIN, start, tree)])
    logits = logits[nodes] if len(logits) else logits
    slots = [start + node for node in nodes]
    yield _Step(start, slots, logits, cache.data[:, :, :, slots])


def _with_siblings(path: Sequence[int], vocab_size: int) -> list[tuple[int, ...]]:
    """The path, and before it at every depth one that leaves it there."""
    astray = [(*path[:depth], (path[depth] + 1) % vocab_size) for depth in range(1, len(path))]
    return [*reversed(astray), tuple(path)]


def _is_on(path: Sequence[int], tokens: Sequence[int]) -> bool:
    return tuple(path[: len(tokens)]) == tuple(tokens)


def _chain(request_id: int, start: int, ids: Sequence[int]) -> Row:
    return Row(request_id, start, TokenTree.chain(ids))


def _forward(loaded: LoadedModel, cache: KVCache, rows: Sequence[Row]) -> Tensor:
    requests = {
        request_id: RequestKV(
            NewRequest(request_id, 1, SamplingParams()),
            np.arange(_NUM_TOKENS) + request_id * _NUM_TOKENS,
        )
        for request_id in (_MAIN, _NEIGHBOUR)
    }
    batch = build_batch(rows, requests, cache.scratch_slot, loaded.device)
    return loaded.model.forward(batch, cache)
