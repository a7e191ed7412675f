"""Vocabularies as bytes: both families, what ends a text, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from actors.errors import ModelError
from actors.vocabulary import Vocabulary
from cluster import tokenizer as subject

CORPUS = ["the quick brown fox jumps over the lazy dog"] * 3


def byte_level(alphabet: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    trainer = BpeTrainer(vocab_size=300, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)}
    for piece in ["▁", "t", "h", "e", "th", "the", "▁the"]:
        vocab[piece] = len(vocab)
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def save(folder: Path, tokenizer: Tokenizer, **changes: Any) -> Path:
    """A model folder with this tokenizer; `changes` are files by their stem."""
    size = max(tokenizer.get_vocab(True).values()) + 1
    files = {"config": {"vocab_size": size}} | changes
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def load_error(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        subject.load_vocabulary(folder)
    return str(caught.value)


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("text", subject.PROBES)
def test_tokens_give_back_the_text(make: Any, text: str, tmp_path: Path) -> None:
    tokenizer = make()
    vocabulary = subject.load_vocabulary(save(tmp_path, tokenizer))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert vocabulary.text_bytes(ids).removeprefix(b" ") == text.encode()


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("text", ["the", " the", 'x": the', "\n the", ", the\n", "na\u00efve"])
def test_text_behind_text_has_no_space_before_it(make: Any, text: str, tmp_path: Path) -> None:
    folder = save(tmp_path, make())
    vocabulary = subject.load_vocabulary(folder)
    ids = subject.load_encoder(folder, vocabulary)(text)
    assert vocabulary.text_bytes(ids) == text.encode()


def test_text_that_the_tokenizer_changes_has_no_tokens(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Lowercase()
    folder = save(tmp_path, byte_level())
    vocabulary = subject.load_vocabulary(folder)
    assert subject.encode_behind_text(tokenizer, vocabulary, "The") == ()
    assert subject.encode_behind_text(tokenizer, vocabulary, "the") != ()


def test_a_space_mark_is_a_space_and_a_byte_token_a_byte(tmp_path: Path) -> None:
    tokenizer = sentencepiece()
    vocabulary = subject.load_vocabulary(save(tmp_path, tokenizer))
    assert vocabulary.token_bytes[tokenizer.token_to_id("▁the")] == b" the"
    assert vocabulary.token_bytes[tokenizer.token_to_id("<0xF0>")] == b"\xf0"


def test_special_tokens_add_no_text_and_keep_their_name(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    vocabulary = subject.load_vocabulary(save(tmp_path, tokenizer))
    end, tool = (tokenizer.token_to_id(name) for name in ("<|end|>", "<tool>"))
    assert (vocabulary.token_bytes[end], vocabulary.token_names[end]) == (b"", "<|end|>")
    assert vocabulary.token_bytes[tool] == b"<tool>"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config": {"eos_token_id": [3, 4]}}, {3, 4}),
        ({"generation_config": {"eos_token_id": 3}}, {3}),
        ({"config": {"vocab_size": 400, "eos_token_id": 5}, "generation_config": {}}, {5}),
        ({"config": {"vocab_size": 400, "eos_token_id": 5},
          "generation_config": {"eos_token_id": 6}}, {6}),
        ({"tokenizer_config": {"eos_token": "the"}}, {"the"}),
        ({"tokenizer_config": {"eos_token": {"content": "the"}}}, {"the"}),
        ({}, set()),
    ],
)  # fmt: skip
def test_what_ends_a_text(files: dict[str, Any], expected: set[Any], tmp_path: Path) -> None:
    tokenizer = byte_level()
    vocabulary = subject.load_vocabulary(save(tmp_path, tokenizer, **files))
    ids = {tokenizer.token_to_id(id_) if isinstance(id_, str) else id_ for id_ in expected}
    assert vocabulary.eos_ids == ids


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    assert "the model only 10" in load_error(
        save(tmp_path, byte_level(), config={"vocab_size": 10})
    )


def test_a_model_larger_than_its_tokenizer_is_served(tmp_path: Path) -> None:
    vocabulary = subject.load_vocabulary(save(tmp_path, byte_level(), config={"vocab_size": 999}))
    assert len(vocabulary) <= 300


def test_an_end_outside_the_model_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, byte_level(), generation_config={"eos_token_id": 100_000})
    assert "[100000]" in load_error(folder)


def test_a_tokenizer_that_loses_text_is_refused(tmp_path: Path) -> None:
    assert "does not give back" in load_error(save(tmp_path, byte_level(alphabet=False)))


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    assert "WordPiece" in load_error(save(tmp_path, tokenizer))


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    assert "no tokenizer.json" in load_error(tmp_path)
    save(tmp_path, byte_level())
    (tmp_path / "config.json").write_text("{")
    assert "config.json is not JSON" in load_error(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    assert "cannot read" in load_error(tmp_path)


@pytest.mark.model
def test_the_embedded_model(smollm2_path: Path) -> None:
    loaded = subject.load_tokenizer(smollm2_path)
    vocabulary: Vocabulary = loaded.vocabulary
    assert vocabulary == subject.load_vocabulary(smollm2_path)
    assert vocabulary.eos_ids == {2}
    assert len(vocabulary) == 49152
    assert vocabulary.token_names[2] == "<|im_end|>"
    assert loaded.tokenizer.chat_template
