"""Fixtures of the HTTP tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from http_fakes import ScriptedBackend, Served, toy_tokenizer, toy_vocabulary
from transformers import PreTrainedTokenizerFast

from actors.vocabulary import Vocabulary

Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return toy_tokenizer()


@pytest.fixture(scope="session")
def vocabulary(tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    return toy_vocabulary(tokenizer)


@pytest.fixture
def ids(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], list[int]]:
    """Text to token ids."""
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture
def byte_ids(vocabulary: Vocabulary) -> Callable[[bytes], list[int]]:
    """Bytes to ids of one-byte tokens."""
    by_byte = {data: id_ for id_, data in enumerate(vocabulary.token_bytes) if len(data) == 1}
    return lambda data: [by_byte[bytes([byte])] for byte in data]


@pytest.fixture
def serve(tokenizer: PreTrainedTokenizerFast, vocabulary: Vocabulary) -> Serve:
    """Serve a fixed script of token ids, or a function of the request."""

    def start(script: Sequence[int] | Callable = (), **options) -> Served:
        backend_options = {
            name: options.pop(name)
            for name in ("blocks", "errors", "hold_after", "note")
            if name in options
        }
        chosen = script if callable(script) else lambda _: script
        backend = ScriptedBackend(vocabulary, chosen, **backend_options)
        return Served(backend, tokenizer, **options)

    return start
