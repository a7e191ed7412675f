"""The draft model: a few small Llama blocks between the LLM's own embedding and head.

Input: the LLM's frozen token embeddings, rows normalised, through one projection. Output: logits
over the *cut*, the LLM's most frequent words, as dot products with the LLM's frozen output rows,
through another projection. So its own weights are a few million whatever the vocabulary, and it
speaks the LLM's token ids. Blocks are pre-norm with rotary positions, full heads and SwiGLU;
attention may be limited to a sliding window.

This is the form that is trained; `actors.ssm.inference` computes the same in fewer operations.
Knows nothing of files, sessions or trees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD_DIM = 64
ROPE_THETA = 10_000.0
NORM_EPS = 1e-6
EMBEDDING_SCALE = 0.1
"""Root mean square of an input embedding's entries."""


@dataclass(frozen=True)
class DraftShape:
    """Sizes of a draft model.

    Attributes:
        width: of the residual stream; a multiple of the head size, 64.
        num_layers: blocks.
        ff_width: of the SwiGLU.
        window: how many positions a token sees, its own included; 0 is all.
    """

    width: int = 256
    num_layers: int = 2
    ff_width: int = 672
    window: int = 0

    @property
    def num_heads(self) -> int:
        return self.width // HEAD_DIM


@dataclass(frozen=True)
class LLMMatrices:
    """What a draft model borrows from its LLM.

    Attributes:
        inputs: [vocab, hidden] float32, the input embedding.
        outputs: [vocab, hidden] float32, the rows of the head; may be `inputs` itself.
    """

    inputs: Tensor
    outputs: Tensor

    @property
    def vocab_size(self) -> int:
        return int(self.inputs.shape[0])

    @property
    def hidden_size(self) -> int:
        return int(self.inputs.shape[1])


class DraftModel(nn.Module):
    """The draft model with its weights.

    Args:
        shape: sizes.
        cut_ids: [cut] the LLM's token ids that it can draft, ascending.
        llm: frozen; its matrices are not part of the state.
    """

    cut_ids: Tensor
    embeddings: Tensor
    output_rows: Tensor

    def __init__(self, shape: DraftShape, cut_ids: Tensor, llm: LLMMatrices) -> None:
        super().__init__()
        self.shape = shape
        hidden = llm.hidden_size
        self.project_in = nn.Linear(hidden, shape.width, bias=False)
        self.layers = nn.ModuleList([Block(shape) for _ in range(shape.num_layers)])
        self.norm = nn.RMSNorm(shape.width, eps=NORM_EPS)
        self.project_out = nn.Linear(shape.width, hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(len(cut_ids)))
        scaled = F.normalize(llm.inputs, dim=-1) * (EMBEDDING_SCALE * math.sqrt(hidden))
        self.register_buffer("cut_ids", cut_ids.to(torch.int32))
        self.register_buffer("embeddings", scaled, persistent=False)
        self.register_buffer("output_rows", llm.outputs[cut_ids.long()].clone(), persistent=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """[batch, length] token ids to [batch, length, width] final hidden states."""
        length = token_ids.shape[1]
        hidden: Tensor = self.project_in(F.embedding(token_ids, self.embeddings))
        positions = torch.arange(length, device=token_ids.device)
        rotary = rotary_table(positions)
        mask = window_mask(positions, self.shape.window)
        for layer in self.layers:
            hidden = layer(hidden, rotary, mask)
        return cast("Tensor", self.norm(hidden))

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., width] final hidden states to [..., cut] float32 logits."""
        return F.linear(hidden, self.head()).float() + self.bias

    def head(self) -> Tensor:
        """[cut, width]: output rows and projection in one matrix."""
        return self.output_rows @ self.project_out.weight


class Block(nn.Module):
    """One pre-norm transformer block; starts as the identity."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        width = shape.width
        self.num_heads = shape.num_heads
        self.attention_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.gate_up = nn.Linear(width, 2 * shape.ff_width, bias=False)
        self.down = nn.Linear(shape.ff_width, width, bias=False)
        nn.init.zeros_(self.attention_out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, hidden: Tensor, rotary: Tensor, mask: Tensor | None) -> Tensor:
        """[batch, length, width] to the same; `mask` None is plain causal attention."""
        batch, length, width = hidden.shape
        qkv = self.qkv(self.attention_norm(hidden))
        heads = qkv.view(batch, length, 3, self.num_heads, HEAD_DIM).permute(2, 0, 3, 1, 4)
        queries, keys = rotate(heads[:2], rotary)
        mixed = F.scaled_dot_product_attention(
            queries, keys, heads[2], attn_mask=mask, is_causal=mask is None
        )
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        hidden = hidden + self.attention_out(mixed)
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, -1)
        return cast("Tensor", hidden + self.down(F.silu(gate) * up))


def rotary_angles(positions: Tensor) -> Tensor:
    """[n, 32] float32: the angle by which each pair of a head is turned at [n] positions."""
    steps = torch.arange(0, HEAD_DIM, 2, device=positions.device, dtype=torch.float32)
    return positions.float()[:, None] / ROPE_THETA ** (steps / HEAD_DIM)


def rotary_table(positions: Tensor) -> Tensor:
    """[2, n, 64] float32: what `rotate` multiplies by at each of [n] positions.

    Row 0 holds the cosines, row 1 the sines, negated for the first half of a head.
    """
    angles = rotary_angles(positions)
    cosines, sines = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1)])


def rotate(heads: Tensor, rotary: Tensor) -> Tensor:
    """Apply rotary positions (Su et al. 2021, halves paired) to [..., n, 64] queries or keys."""
    cosines, sines = rotary.to(heads.dtype)
    rotated: Tensor = heads * cosines + heads.roll(HEAD_DIM // 2, -1) * sines
    return rotated


def window_mask(positions: Tensor, window: int) -> Tensor | None:
    """[n, n] true where row i sees column j; None where that is all that is not later."""
    if not 0 < window < len(positions):
        return None
    behind = positions[:, None] - positions
    return (behind >= 0) & (behind < window)
