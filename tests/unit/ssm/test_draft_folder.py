"""Draft models on disk, and why one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import CUT, SHAPE, write_llm

from actors.errors import ModelError
from actors.ssm.folder import identify_llm, load_draft, load_matrices, save_draft
from actors.ssm.model import DraftModel


@pytest.fixture
def llm(tmp_path: Path) -> Path:
    return write_llm(tmp_path / "llm")


@pytest.fixture
def folder(tmp_path: Path, llm: Path) -> Path:
    model = DraftModel(SHAPE, CUT, load_matrices(llm))
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    save_draft(tmp_path / "ssm", model, identify_llm(llm), 4, "a card", torch.float32)
    return tmp_path / "ssm"


def test_what_is_saved_is_loaded(folder: Path, llm: Path) -> None:
    model, config = load_draft(folder, llm)
    assert (config.weights_version, config.shape) == (4, SHAPE)
    assert torch.equal(model.cut_ids, CUT.int())
    assert (folder / "README.md").read_text() == "a card"
    again = folder.with_name("again")
    save_draft(again, model, config.llm, 4, "a card", torch.float32)
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_what_the_llm_lends_is_not_saved(folder: Path, llm: Path) -> None:
    saved = load_file(folder / "model.safetensors")
    assert not {"embeddings", "output_rows"} & set(saved)
    model, _ = load_draft(folder, llm)
    head = load_file(llm / "model.safetensors")["lm_head.weight"]
    assert torch.equal(model.output_rows, head[CUT])


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    matrices = load_matrices(write_llm(tmp_path / "tied", tied=True))
    assert matrices.outputs is matrices.inputs


def other_weights(llm: Path) -> None:
    tensors = load_file(llm / "model.safetensors")
    tensors["lm_head.weight"][0, 0] += 1
    save_file(tensors, llm / "model.safetensors")


def other_size(llm: Path) -> None:
    tensors = load_file(llm / "model.safetensors")
    save_file({k: v[:-1].contiguous() for k, v in tensors.items()}, llm / "model.safetensors")


def other_width(llm: Path) -> None:
    tensors = load_file(llm / "model.safetensors")
    save_file({k: v[:, :-1].contiguous() for k, v in tensors.items()}, llm / "model.safetensors")


def other_words(llm: Path) -> None:
    write_llm(llm, words="mot")


def no_tokenizer(llm: Path) -> None:
    (llm / "tokenizer.json").unlink()


def other_names(llm: Path) -> None:
    save_file({"transformer.wte.weight": torch.zeros(4, 4)}, llm / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_weights, "weights_hash"),
        (other_size, "vocab_size 120, the one served has 119"),
        (other_width, "hidden_size 24, the one served has 23"),
        (other_words, "tokenizer_hash"),
        (no_tokenizer, r"tokenizer\.json"),
        (other_names, "no tensor model.embed_tokens.weight"),
    ],
)
def test_another_llm_is_refused_with_the_reason(
    folder: Path, llm: Path, change: Callable[[Path], None], reason: str
) -> None:
    change(llm)
    with pytest.raises(ModelError, match=f"draft model ssm cannot be used: .*{reason}"):
        load_draft(folder, llm)


def test_how_a_tokenizer_file_is_written_does_not_matter(folder: Path, llm: Path) -> None:
    path = llm / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "2.0"}, indent=4))
    load_draft(folder, llm)


def configured(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def weights(**changes: torch.Tensor) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        save_file(load_file(path) | changes, path)

    return change


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"nothing")


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (no_config, r"config\.json cannot be read"),
        (no_weights, r"model\.safetensors cannot be read"),
        (configured(kind="llama"), "kind"),
        (configured(size=3), "size"),
        (configured(width=100), "width"),
        (configured(num_layers=1), "do not fit"),
        (configured(cut_size=3), "no cut of 3"),
        (weights(cut_ids=CUT.int().flip(0)), "not an ascending list"),
        (weights(cut_ids=CUT.int() + 100), "ids below 120"),
        (weights(cut_ids=CUT), "int32"),
        (weights(bias=torch.full((len(CUT),), torch.nan)), "not finite"),
        (weights(extra=torch.zeros(1)), "extra"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_reason(
    folder: Path, llm: Path, damage: Callable[[Path], None], reason: str
) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=f"draft model ssm cannot be used: .*{reason}"):
        load_draft(folder, llm)
