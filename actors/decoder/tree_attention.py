"""Attention of a step's rows over the paged cache; the one place where rows meet keys.

Used by the fused forward directly, and by stock transformers modules through
`transformers.AttentionInterface`: they pass the step on as the keywords `step_batch` and
`kv_cache`, with the ragged batch flattened to [1, tokens].

Query heads that share a key head are folded into the rows, so keys are never repeated. Scores,
softmax and sums are float32 (float64 in a float64 model). torch's fused attention is not used: on
CPUs its sums, taken by another library, depend on the number of rows.

Of the variants, sliding windows and soft-capped logits are covered; attention sinks, ALiBi and the
like are not, and are refused by loading.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from actors.decoder.attention_groups import AttentionGroup
from actors.decoder.batch import StepBatch
from actors.decoder.kv_cache import KVCache

STOCK_NAME = "treeserve_paged"
"""The name under which the stock modules find this attention."""


@contextmanager
def stable_products(dtype: torch.dtype) -> Iterator[None]:
    """Let oneDNN take float32 products of a bfloat16 model's attention.

    Its kernels add in one order for any number of rows above one; those of the default library do
    not. The setting allows it to read the inputs as bfloat16, which K, V and queries are anyway.
    """
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    if dtype == torch.bfloat16:
        matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def attend(
    queries: Tensor,
    layer: Tensor,
    batch: StepBatch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """The attention output of every row, after its own keys and values were written.

    Args:
        queries: [N, heads, head_dim], rotated.
        layer: [2, kv_heads, slots + 1, head_dim] of the cache.
        scale: of the scores.
        window: positions that a row sees, its own included.
        softcap: scores become softcap * tanh(score / softcap).

    Returns:
        [N, heads * head_dim].
    """
    groups, order = batch.attention
    parts = [_attend_group(queries, layer, group, scale, window, softcap) for group in groups]
    attended = parts[0] if len(parts) == 1 else torch.cat(parts)
    return attended if order is None else attended.index_select(0, order)


def _attend_group(
    queries: Tensor,
    layer: Tensor,
    group: AttentionGroup,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    if group.rows is not None:
        queries = queries.index_select(0, group.rows)
    heads, head_dim = queries.shape[1:]
    kv_heads = layer.shape[1]
    exact = torch.promote_types(queries.dtype, torch.float32)
    # kv_heads, entries, rows, heads that share a key head, head_dim
    split = (group.num_entries, group.num_rows, kv_heads, heads // kv_heads, head_dim)
    folded = _convert(queries.view(split).permute(2, 0, 1, 3, 4), exact)
    folded = folded.view(kv_heads * group.num_entries, -1, head_dim)
    if isinstance(group.keys, slice):
        pairs = layer[:, :, group.keys]
    else:
        pairs = layer.index_select(2, group.keys)
    keys, values = pairs.to(exact).view(2, len(folded), group.num_keys, head_dim).unbind(0)
    mask = group.mask(window, kv_heads, split[3], exact)
    scores = torch.bmm(folded, keys.transpose(1, 2))
    if softcap is not None:
        scores, scale = scores.mul_(scale / softcap).tanh_(), softcap
    scores = torch.add(mask, scores, alpha=scale)
    out = torch.bmm(torch.softmax(scores, -1), values)
    out = out.view(kv_heads, *split[:2], *split[3:]).permute(1, 2, 0, 3, 4)
    return _convert(out, queries.dtype).view(-1, heads * head_dim)


def _convert(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    # `to` ignores the memory format where the dtype stays.
    return tensor.to(dtype, memory_format=torch.contiguous_format).contiguous()


def stock_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    step_batch: StepBatch,
    kv_cache: KVCache,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """What stock modules call; [1, heads, N, head_dim] in, [1, N, heads, head_dim] out."""
    layer = kv_cache.layers[module.layer_idx]  # type: ignore[index]
    layer.index_copy_(2, step_batch.slots, torch.stack((key[0], value[0])))
    queries = query[0].transpose(0, 1)
    out = attend(queries, layer, step_batch, scaling, sliding_window, softcap)
    return out.view(1, *queries.shape), None
