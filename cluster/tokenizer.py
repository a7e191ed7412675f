"""A model's tokenizer, and its vocabulary as bytes.

The manager needs the vocabulary alone and reads it with the `tokenizers` library; the ingress also
needs the tokenizer of `transformers`, for its chat template.

Assumes `tokenizer.json`, of one of two families: byte-level BPE (each character of a token stands
for a byte, GPT-2's map) or SentencePiece style (`▁` for a space, `<0xNN>` for a byte). Others are
refused, as is a tokenizer whose tokens, put together again, do not give back the text: better at
start than in the middle of an answer. Downloads and runs nothing.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer

from actors.errors import ModelError
from actors.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPACE_MARK = "\u2581"
PROBES = (
    "The quick brown fox, 12345 times; it's 'quoted' (and [bracketed]).",
    "def f(x):\n\treturn {x: 1}  # two  spaces\r\n\n",
    "na\u00efve caf\u00e9 \u2014 \u00bd \u20ac",
    "\U0001f525 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1f9\U0001f1ed",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
    "\u6f22\u5b57\u3068\u304b\u306a \u95eb",
)
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer of `transformers`, and the vocabulary that was checked against it."""

    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary


def load_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary of a model folder, checked against its tokenizer and the model.

    Raises:
        ModelError: the tokenizer cannot be read, is of a family that we cannot turn into bytes,
            gives back other bytes than it was given, or has more tokens than the model.
    """
    return _checked_vocabulary(folder, _read_tokenizer(folder))


def load_encoder(folder: Path, vocabulary: Vocabulary) -> Callable[[str], Sequence[int]]:
    """What splits text into the tokens of a model folder's tokenizer.

    Raises:
        ModelError: the tokenizer cannot be read.
    """
    return functools.partial(encode_behind_text, _read_tokenizer(folder), vocabulary)


def encode_behind_text(tokenizer: Tokenizer, vocabulary: Vocabulary, text: str) -> Sequence[int]:
    """Tokens of a text that does not begin one; none if the tokenizer has no such tokens.

    SentencePiece tokenizers may put a space before a text, which must not be there: a line's end
    goes first instead, and is taken off again.
    """
    for lead in ("", "\n"):
        ids = tokenizer.encode(lead + text, add_special_tokens=False).ids
        for begin in range(len(ids) if lead else 1):
            if vocabulary.text_bytes(ids[begin:]) == text.encode():
                return ids[begin:]
    return ()


def load_tokenizer(folder: Path) -> LoadedTokenizer:
    """The tokenizer of a model folder, with its vocabulary. Raises as `load_vocabulary`."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"cannot load the tokenizer in {folder}: {error}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{type(tokenizer).__name__} has no counterpart in `tokenizers`")
    return LoadedTokenizer(tokenizer, _checked_vocabulary(folder, backend))


def has_chat_template(folder: Path) -> bool:
    """True if the model of a folder comes with a chat template."""
    if (folder / "chat_template.jinja").is_file():
        return True
    return bool(_read_json(folder / "tokenizer_config.json").get("chat_template"))


def build_vocabulary(tokenizer: Tokenizer, eos_ids: frozenset[int]) -> Vocabulary:
    """The bytes and the name of every token id.

    Raises:
        ModelError: the tokenizer's family is not one of the two that we know.
    """
    to_bytes = _bytes_rule(tokenizer)
    added = tokenizer.get_added_tokens_decoder()
    names_by_id = {id_: name for name, id_ in tokenizer.get_vocab(True).items()}
    names = tuple(names_by_id.get(id_, "") for id_ in range(max(names_by_id) + 1))
    token_bytes = tuple(
        _added_bytes(added[id_]) if id_ in added else to_bytes(name)
        for id_, name in enumerate(names)
    )
    return Vocabulary(token_bytes, names, eos_ids)


def eos_token_ids(folder: Path, tokenizer: Tokenizer) -> frozenset[int]:
    """Every id that ends a text: the one that the tokenizer names, and those of the generation
    settings or, where these name none, of the model's configuration."""
    stated = _read_json(folder / "generation_config.json").get("eos_token_id")
    if stated is None:
        stated = _read_json(folder / "config.json").get("eos_token_id")
    ids = set(stated) if isinstance(stated, list) else {stated}
    token = _read_json(folder / "tokenizer_config.json").get("eos_token")
    name = token.get("content") if isinstance(token, dict) else token
    if isinstance(name, str):
        ids.add(tokenizer.token_to_id(name))
    return frozenset(id_ for id_ in ids if id_ is not None)


def model_vocab_size(folder: Path) -> int:
    """Rows of the model's output head, by its configuration.

    Raises:
        ModelError: the configuration does not say.
    """
    config = _read_json(folder / "config.json")
    size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    if not isinstance(size, int):
        raise ModelError(f"{folder / 'config.json'} does not say vocab_size")
    return size


def check_fits_model(vocabulary: Vocabulary, vocab_size: int) -> None:
    """Raise ModelError if some token has no row in the model's head."""
    if len(vocabulary) > vocab_size:
        raise ModelError(
            f"the tokenizer has {len(vocabulary)} tokens, the model only {vocab_size}: "
            "they do not belong together"
        )
    if lost := sorted(id_ for id_ in vocabulary.eos_ids if not 0 <= id_ < vocab_size):
        raise ModelError(f"end-of-text ids {lost} lie outside the model's {vocab_size} tokens")


def check_round_trip(
    tokenizer: Tokenizer, vocabulary: Vocabulary, probes: Sequence[str] = PROBES
) -> None:
    """Raise ModelError if the tokens of a probe text do not give back its bytes.

    SentencePiece tokenizers may put one space before a text.
    """
    for text in probes:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        found = vocabulary.text_bytes(ids)
        if found not in (text.encode(), b" " + text.encode()):
            raise ModelError(
                f"the tokenizer does not give back what it was given: {text!r} became "
                f"{found.decode(errors='replace')!r}"
            )


def _read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"no tokenizer.json in {folder}")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"cannot read {path}: {error}") from error


def _checked_vocabulary(folder: Path, tokenizer: Tokenizer) -> Vocabulary:
    vocabulary = build_vocabulary(tokenizer, eos_token_ids(folder, tokenizer))
    check_fits_model(vocabulary, model_vocab_size(folder))
    check_round_trip(tokenizer, vocabulary)
    return vocabulary


def _bytes_rule(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """How a token's written form turns into bytes, by the tokenizer's own decoder."""
    if tokenizer.decoder is None:
        raise ModelError("the tokenizer does not say how it decodes")
    kinds = _decoder_kinds(json.loads(tokenizer.decoder.__getstate__()))
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"Metaspace", "ByteFallback"}:
        return _sentencepiece
    raise ModelError(
        f"a tokenizer that decodes by {', '.join(sorted(kinds))} is not supported; "
        "only byte-level BPE and SentencePiece style are"
    )


def _decoder_kinds(decoder: dict[str, Any]) -> set[str]:
    if decoder["type"] == "Sequence":
        return set().union(*(_decoder_kinds(part) for part in decoder["decoders"]))
    return {decoder["type"]}


def _added_bytes(token: AddedToken) -> bytes:
    return b"" if token.special else token.content.encode()


def _byte_level(name: str) -> bytes:
    table = _byte_of_character()
    return bytes(table[character] for character in name)


def _sentencepiece(name: str) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(name):
        return bytes([int(byte[1], 16)])
    return name.replace(SPACE_MARK, " ").encode()


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's map (Radford et al. 2019): printable bytes are themselves, others move up by 256."""
    table = {}
    moved = 0
    for byte in range(256):
        if byte in range(0x21, 0x7F) or (byte in range(0xA1, 0x100) and byte != 0xAD):
            table[chr(byte)] = byte
        else:
            table[chr(256 + moved)] = byte
            moved += 1
    return table


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return content
