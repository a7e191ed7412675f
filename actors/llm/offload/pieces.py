"""Embedding and head of a model whose weights are streamed.

They are the largest matrices of most models. Of the embedding a step needs a few rows, which are
read where they lie: in the weight file. The head is needed whole, and is cut into slices so that
no more of it has to be at hand than of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from actors.llm.fused_llama import Foreign

ReadRows = Callable[[Sequence[int]], Tensor]
"""[rows, width] of some rows of a matrix."""


class StoredEmbedding(nn.Module):
    """An embedding that has its weight elsewhere.

    Args:
        embedding: what it does with its weight, which need not be there: a lookup, and whatever
            it makes of the rows regardless of their ids.
        read_rows: rows of the weight, on the device and in the type of the model.
    """

    def __init__(self, embedding: Foreign, read_rows: ReadRows) -> None:
        super().__init__()
        embedding.weight = None
        embedding.padding_idx = None
        # Not as a submodule: it has no weights of its own to be moved about.
        self._embedding = [embedding]
        self._read_rows = read_rows

    def forward(self, token_ids: Tensor) -> Tensor:
        wanted, places = torch.unique(token_ids, return_inverse=True)
        rows = self._read_rows(wanted.tolist())
        (embedding,) = self._embedding
        embedding.weight = nn.Parameter(rows, requires_grad=False)
        try:
            states: Tensor = embedding(places)
        finally:
            embedding.weight = None
        return states


class SlicedHead(nn.Module):
    """A head cut into slices of its words.

    Args:
        head: a linear layer whose weight is there, which is shared.
        max_words: of one slice.

    Attributes:
        slices: in the order of the words.
    """

    def __init__(self, head: Foreign, max_words: int) -> None:
        super().__init__()
        weights = torch.split(head.weight.detach(), max_words)
        biases: Sequence[Tensor | None] = [None] * len(weights)
        if head.bias is not None:
            biases = torch.split(head.bias.detach(), max_words)
        self.slices = nn.ModuleList(map(_linear, weights, biases))

    def forward(self, states: Tensor) -> Tensor:
        return torch.cat([part(states) for part in self.slices], -1)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    with torch.device("meta"):
        part = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, dtype=weight.dtype)
    part.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        part.bias = nn.Parameter(bias, requires_grad=False)
    return part
