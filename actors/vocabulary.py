"""A vocabulary as bytes: what each token id adds to the text.

Text is committed, matched against stop strings and streamed as bytes, so that a character split
over tokens is never shown in part, however the tokens are grouped into steps. Built from a
tokenizer at the edge (`cluster.tokenizer`); knows no tokenizer itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Vocabulary:
    """The text of every token id.

    Attributes:
        token_bytes: [vocab_size] bytes that a token adds; empty for special tokens.
        token_names: [vocab_size] the token as a person would write it, special tokens included.
        eos_ids: tokens that end a text.
    """

    token_bytes: tuple[bytes, ...]
    token_names: tuple[str, ...]
    eos_ids: frozenset[int]

    def __len__(self) -> int:
        return len(self.token_bytes)

    def text_bytes(self, token_ids: Iterable[int]) -> bytes:
        """The bytes of a run of tokens; ids that no token has add nothing.

        A model's head may be padded beyond its tokenizer; such ids can be drawn and mean nothing.
        """
        table = self.token_bytes
        return b"".join(table[token] for token in token_ids if token < len(table))
