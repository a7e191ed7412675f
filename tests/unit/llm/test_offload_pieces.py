"""Embedding and head of a streamed model say what they say whole; how pieces are counted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tiny_models import tiny_model
from torch import Tensor, nn

from actors.llm.offload.pieces import SlicedHead, StoredEmbedding
from actors.llm.offload.streaming import PieceSizes, zero_settings

IDS = torch.tensor([[7, 3, 3, 60, 7, 0]])


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "opt"])
def test_rows_of_an_embedding_are_read_where_they_lie(family: str) -> None:
    """Those that scale their rows too, or know a token that stands for nothing."""
    embedding = tiny_model(family).get_input_embeddings()
    table = embedding.weight.detach().clone()
    wanted = embedding(IDS)
    read: list[Sequence[int]] = []

    def read_rows(rows: Sequence[int]) -> Tensor:
        read.append(rows)
        return table[list(rows)]

    stored = StoredEmbedding(embedding, read_rows)
    assert not list(stored.parameters())
    assert torch.equal(stored(IDS), wanted)
    assert torch.equal(stored(IDS[:, :1]), wanted[:, :1])
    assert read == [[0, 3, 7, 60], [7]]  # each once


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("max_words", [1, 7, 10, 100])
def test_slices_of_a_head_are_the_head(bias: bool, max_words: int) -> None:
    head = nn.Linear(6, 20, bias).double()
    states = torch.randn(3, 6, dtype=torch.float64)
    sliced = SlicedHead(head, max_words)
    assert max(len(part.weight) for part in sliced.slices) <= max_words
    assert sum(weight.numel() for weight in sliced.parameters()) == sum(
        weight.numel() for weight in head.parameters()
    )
    torch.testing.assert_close(sliced(states), head(states))


def test_buffers_hold_two_layers_and_vectors_do_not_count() -> None:
    model = tiny_model("llama")  # width 32: q, k, v, o, gate, up, down
    sizes = PieceSizes.of(model.model.layers, [model.lm_head], 32)
    assert (sizes.largest_matrix, sizes.most_matrices) == (48 * 32, 7)
    assert sizes.largest_layer == 32 * (32 + 16 + 16 + 32) + 3 * 48 * 32
    assert sizes.total == 3 * sizes.largest_layer + 61 * 32
    assert sizes.max_words == 48


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_weights_are_pinned_where_there_are_gpus(device: str, tmp_path) -> None:
    sizes = PieceSizes(32, 1536, 7680, 7, 25000)
    for folder in (None, tmp_path):
        settings = zero_settings(sizes, torch.bfloat16, torch.device(device), folder)
        offload = settings["zero_optimization"]["offload_param"]
        assert offload["device"] == ("cpu" if folder is None else "nvme")
        assert offload["pin_memory"] == (device == "cuda")
        assert settings["bf16"]["enabled"]
