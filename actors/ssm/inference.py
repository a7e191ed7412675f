"""The draft model's forward pass in few operations, for a handful of rows at a time.

The same function as `actors.ssm.model.DraftModel`, with everything that can be is done once: token
embeddings already projected, norm weights and attention scale folded into the products that follow
them, output rows and projection in one matrix, weights packed. The residual stream is float32, the
products have the type asked for. Rows are those of `actors.ssm.lanes`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actors.linear import Linear
from actors.ssm.lanes import Lanes, Span
from actors.ssm.model import HEAD_DIM, NORM_EPS, Block, DraftModel, rotary_table, rotate


@dataclass(frozen=True)
class _Layer:
    qkv: Linear
    attention_out: Linear
    gate_up: Linear
    down: Linear


class FusedDraft:
    """A draft model ready to draft; keeps nothing of the model that it is made from.

    Args:
        model: with its weights.
        dtype: to compute in.

    Attributes:
        cut_ids: [cut] int64, the LLM's token id of each logit.
        vocab_size: the LLM's.
    """

    def __init__(self, model: DraftModel, dtype: torch.dtype) -> None:
        self.shape = model.shape
        self.dtype = dtype
        self.cut_ids = model.cut_ids.long()
        self.vocab_size = len(model.embeddings)
        with torch.inference_mode():
            self._table = model.project_in(model.embeddings).to(dtype)  # [vocab, width]
            self._layers = [_fuse(cast("Block", block), dtype) for block in model.layers]
            head = model.head() * _norm_factor(model.norm)
            self._head = Linear(head.to(dtype), model.bias.to(dtype))
        self._least_length = torch.tensor(math.sqrt(NORM_EPS * self.shape.width))
        self._rotary = self._rotary_up_to(1024)

    def new_cache(self, capacity: int) -> Tensor:
        """Room for the keys and values of `capacity` positions, as `Lanes` takes them."""
        sizes = (self.shape.num_layers, 2, self.shape.num_heads, capacity, HEAD_DIM)
        return torch.empty(sizes, dtype=self.dtype)

    @property
    def bytes_per_token(self) -> int:
        """Of one position's keys and values."""
        return 2 * self.shape.num_layers * self.shape.width * self.dtype.itemsize

    def forward(self, token_ids: Tensor, lanes: Lanes, span: Span) -> Tensor:
        """[rows] token ids to [rows, width] final states; writes the rows' KV to the lanes."""
        hidden = self._table.index_select(0, token_ids).float()
        rotary = self._rotary_at(span.positions)
        for layer, keys_values in zip(self._layers, lanes.keys_values, strict=True):
            mixed = self._attend(layer.qkv(self._norm(hidden)), rotary, keys_values, span)
            hidden = hidden + layer.attention_out(mixed)
            gate, up = layer.gate_up(self._norm(hidden)).chunk(2, -1)
            hidden += layer.down(F.silu(gate).mul_(up))
        return self._norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, width] final hidden states to [rows, cut] float32 logits of our own."""
        return self._head(hidden).to(torch.float32, copy=True)

    def _attend(self, qkv: Tensor, rotary: Tensor, keys_values: Tensor, span: Span) -> Tensor:
        """Attention of one layer; returns [rows, width].

        Args:
            qkv: [rows, 3 * width]
            keys_values: [2, lanes, heads, columns, 64] of this layer.
        """
        num_heads = self.shape.num_heads
        heads = qkv.view(-1, 3 * num_heads, HEAD_DIM)
        # [lanes, heads, width, 64]
        turned = span.pad(rotate(heads[:, : 2 * num_heads], rotary)).transpose(1, 2)
        queries, keys = turned.chunk(2, 1)
        keys_values[0, :, :, span.start : span.stop] = keys
        values = span.pad(heads[:, 2 * num_heads :]).transpose(1, 2)
        keys_values[1, :, :, span.start : span.stop] = values
        scores = torch.matmul(queries, keys_values[0].transpose(-1, -2)).add_(span.mask)
        mixed = torch.matmul(scores.softmax(-1), keys_values[1])
        return span.flatten(mixed.transpose(1, 2).flatten(2))

    def _norm(self, rows: Tensor) -> Tensor:
        """RMS norm but for what `_norm_factor` has folded into the product that follows."""
        lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return rows.div(lengths.hypot_(self._least_length)).to(self.dtype)

    def _rotary_at(self, positions: Tensor) -> Tensor:
        """[2, rows, 1, 64]"""
        last = int(positions.max())
        if last >= self._rotary.shape[1]:
            self._rotary = self._rotary_up_to(2 * last)
        return self._rotary.index_select(1, positions)[:, :, None]

    def _rotary_up_to(self, end: int) -> Tensor:
        return rotary_table(torch.arange(end)).to(self.dtype)


def _norm_factor(norm: nn.RMSNorm) -> Tensor:
    """[width]: what a norm multiplies rows of length 1 by."""
    return norm.weight * math.sqrt(len(norm.weight))


def _fuse(block: Block, dtype: torch.dtype) -> _Layer:
    qkv = block.qkv.weight * _norm_factor(block.attention_norm)
    scale = torch.ones(len(qkv), 1)
    scale[: len(qkv) // 3] = HEAD_DIM**-0.5  # the queries'; a power of two, so nothing is rounded
    return _Layer(
        Linear((qkv * scale).to(dtype)),
        Linear(block.attention_out.weight.to(dtype)),
        Linear((block.gate_up.weight * _norm_factor(block.mlp_norm)).to(dtype)),
        Linear(block.down.weight.to(dtype)),
    )
