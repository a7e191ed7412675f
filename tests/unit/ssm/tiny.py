"""A tiny LLM's folder, and tiny draft models with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from actors.ssm.config import SSMConfig
from actors.ssm.folder import DraftConfig, LLMIdentity
from actors.ssm.inference import FusedDraft
from actors.ssm.model import DraftModel, DraftShape, LLMMatrices
from actors.ssm.speculator import Speculator, SpeculatorOptions

VOCAB, HIDDEN = 120, 24
SHAPE = DraftShape(width=128, num_layers=2, ff_width=96)
WINDOWED = DraftShape(width=128, num_layers=2, ff_width=96, window=7)
CUT = torch.arange(1, VOCAB, 2)
IDENTITY = LLMIdentity(
    weights_hash="w" * 8, tokenizer_hash="t" * 8, vocab_size=VOCAB, hidden_size=HIDDEN
)


def draft_model(shape: DraftShape = SHAPE) -> DraftModel:
    """Random weights, large enough that every part of the model matters."""
    torch.manual_seed(11)
    table = torch.randn(VOCAB, HIDDEN)
    model = DraftModel(shape, CUT, LLMMatrices(table, torch.randn(VOCAB, HIDDEN)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.5 * parameter.shape[1] ** -0.5)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval().requires_grad_(False)


def fused(shape: DraftShape = SHAPE) -> FusedDraft:
    return FusedDraft(draft_model(shape), torch.float32)


def speculator(
    shape: DraftShape = SHAPE,
    expansion: str | tuple[int, ...] = "best_first",
    max_cache_tokens: int = 4096,
    index: int = 0,
) -> Speculator:
    config = DraftConfig(
        width=shape.width,
        num_layers=shape.num_layers,
        ff_width=shape.ff_width,
        window=shape.window,
        cut_size=len(CUT),
        weights_version=3,
        llm=IDENTITY,
    )
    bytes_per_token = 2 * shape.num_layers * shape.width * 4
    # Smaller than what a configuration may ask for.
    ssm = SSMConfig(path="tiny").model_copy(
        update={"kv_memory_bytes": max_cache_tokens * bytes_per_token}
    )
    options = SpeculatorOptions(Path("tiny"), Path("llm"), ssm, expansion, torch.float32, index)
    return Speculator(draft_model(shape), config, options)


def write_llm(folder: Path, tied: bool = False, words: str = "word") -> Path:
    """A folder that holds as much of an LLM as a draft model reads."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    tensors = {"model.embed_tokens.weight": torch.randn(VOCAB, HIDDEN)}
    if not tied:
        tensors["lm_head.weight"] = torch.randn(VOCAB, HIDDEN)
    save_file(tensors, folder / "model.safetensors")
    vocabulary = {f"{words}{token}": token for token in range(VOCAB - 1)}
    added = [{"id": VOCAB - 1, "content": "<eos>", "special": True}]
    tokenizer = {"added_tokens": added, "model": {"type": "BPE", "vocab": vocabulary}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
