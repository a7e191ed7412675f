"""Counting and cutting text by tokens.

With the model's own `tokenizer.json` the counts are exact; without one, lengths of prompts are a
rough guess of characters a token, good for making prompts and never used to measure an answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from loadtest.errors import UsageError

CHARACTERS_PER_TOKEN = 4.5
"""Of English prose; only for making prompts where no tokenizer is given."""


class TextRuler(Protocol):
    """Measures text in tokens."""

    def ends(self, text: str) -> list[int]:
        """Where each token ends, in characters; ascending."""
        ...


class ExactRuler:
    """The model's own tokenizer, without the special tokens of its templates."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ends(self, text: str) -> list[int]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [end for _, end in encoding.offsets]


class RoughRuler:
    """A token every few characters."""

    def ends(self, text: str) -> list[int]:
        count = round(len(text) / CHARACTERS_PER_TOKEN)
        return [round((number + 1) * len(text) / count) for number in range(count)]


def load_ruler(path: Path) -> ExactRuler:
    """From a `tokenizer.json`, or a model folder that holds one.

    Raises:
        UsageError: if there is none.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"--tokenizer {path}: no tokenizer.json there")
    try:
        return ExactRuler(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises nothing more special
        raise UsageError(f"--tokenizer {path}: {error}") from error


def cut(ruler: TextRuler, text: str, num_tokens: int) -> str:
    """The first `num_tokens` of a text, or all of it."""
    ends = ruler.ends(text)
    return text if len(ends) <= num_tokens else text[: ends[num_tokens - 1]]
