"""A tiny LLM's folder with an alphabet of bytes, and draft models for it, all of random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from actors.ssm.folder import identify_llm, load_matrices, save_draft
from actors.ssm.model import DraftModel, DraftShape

EOS = "<|end|>"


def write_llm(folder: Path) -> Path:
    """One layer; every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, EOS])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        eos_token_id=vocabulary[EOS],
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_draft(folder: Path, llm: Path, seed: int) -> Path:
    """A draft model that has learnt nothing."""
    torch.manual_seed(seed)
    matrices = load_matrices(llm)
    cut = torch.arange(len(matrices.inputs))
    model = DraftModel(DraftShape(width=64, num_layers=1, ff_width=32), cut, matrices)
    save_draft(folder, model, identify_llm(llm), 1, "untrained")
    return folder
