"""Answers of the LLM with its most probable words at every place, on disk and in memory.

A folder holds `manifest.json` and shards in safetensors. A shard appears whole (by rename) before
the manifest names it, so after a kill the folder holds what the manifest says, and work goes on at
the next shard. Records of another LLM are refused by its weights' hash.

Token ids are those of the LLM's tokenizer; texts are not kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from actors.errors import InputError

MANIFEST_FILE = "manifest.json"
CLAIM_FILE = "settings.json"
_FORMAT = 1
Ints = npt.NDArray[np.int32]
Halves = npt.NDArray[np.float16]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Record:
    """One prompt with its answer.

    Attributes:
        source: which prompt set it came from.
        tokens: [prompt + answer] token ids.
        prompt_len: tokens of the prompt.
        top_ids: [answer, K] the LLM's most probable ids at each place of the answer, best first.
        top_logprobs: [answer, K] their log-probabilities at temperature 1.
        weights: [answer] how much each place counts in training; None for all alike. Not stored.
    """

    source: str
    tokens: Ints
    prompt_len: int
    top_ids: Ints
    top_logprobs: Halves
    weights: Floats | None = None

    @property
    def answer_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def place_weights(self) -> Floats:
        """[answer] the weights, all 1 if there are none."""
        return np.ones(self.answer_len, np.float32) if self.weights is None else self.weights


class RecordFolder:
    """A folder of records; made if there is none.

    Args:
        llm_hash: of the weights of the LLM that answers.

    Raises:
        InputError: the folder belongs to another LLM, or is damaged.
    """

    def __init__(self, path: Path, llm_hash: str) -> None:
        self._path = path
        self._manifest: dict[str, Any] = {"format": _FORMAT, "llm": llm_hash, "shards": []}
        if (path / MANIFEST_FILE).is_file():
            self._manifest = _read_manifest(path)
        if self._manifest["llm"] != llm_hash:
            raise InputError(f"{path}: these answers are another LLM's")

    @property
    def num_shards(self) -> int:
        return len(self._manifest["shards"])

    @property
    def num_records(self) -> int:
        return sum(shard["records"] for shard in self._manifest["shards"])

    @property
    def num_answer_tokens(self) -> int:
        return sum(shard["answer_tokens"] for shard in self._manifest["shards"])

    def add(self, records: Sequence[Record]) -> None:
        """Append one shard."""
        self._path.mkdir(parents=True, exist_ok=True)
        name = f"shard-{len(self._manifest['shards']):05d}.safetensors"
        scratch = self._path / f".{name}.tmp"
        save_file(_arrays(records), scratch, metadata={"sources": json.dumps(_sources(records))})
        scratch.rename(self._path / name)
        entry = {
            "file": name,
            "records": len(records),
            "answer_tokens": sum(record.answer_len for record in records),
        }
        self._manifest["shards"].append(entry)
        write_json(self._path / MANIFEST_FILE, self._manifest)

    def read(self) -> list[Record]:
        """All records, in the order in which they were added. Raises InputError."""
        records: list[Record] = []
        for shard in self._manifest["shards"]:
            records.extend(_read_shard(self._path / shard["file"]))
        return records


def claim_folder(path: Path, settings: Mapping[str, str]) -> None:
    """Note in a folder what its work is for, so that it is never mixed with other work.

    Raises:
        InputError: it holds work for other settings, or cannot be written to.
    """
    note = path / CLAIM_FILE
    wanted = dict(settings)
    if note.is_file():
        begun = json.loads(note.read_text(encoding="utf-8"))
        other = sorted(key for key in wanted if begun.get(key) != wanted[key])
        if other:
            raise InputError(
                f"{path} was begun with other settings ({', '.join(other)}); "
                "call it as then, or name another folder"
            )
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_json(note, wanted)
    except OSError as error:
        raise InputError(f"{path} cannot be written to: {error.strerror}") from error


def write_json(path: Path, content: object) -> None:
    """Replace a JSON file in one go."""
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    scratch.replace(path)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
        known = content["format"] == _FORMAT and isinstance(content["shards"], list)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {MANIFEST_FILE} is damaged") from error
    if not known:
        raise InputError(f"{path}: {MANIFEST_FILE} is of another format")
    return content


def _sources(records: Iterable[Record]) -> list[str]:
    return [record.source for record in records]


def _arrays(records: Sequence[Record]) -> dict[str, npt.NDArray[Any]]:
    return {
        "tokens": np.concatenate([record.tokens for record in records]),
        "lengths": np.asarray([len(record.tokens) for record in records], dtype=np.int32),
        "prompt_lengths": np.asarray([record.prompt_len for record in records], dtype=np.int32),
        "top_ids": np.concatenate([record.top_ids for record in records]),
        "top_logprobs": np.concatenate([record.top_logprobs for record in records]),
    }


def _read_shard(path: Path) -> list[Record]:
    try:
        arrays = load_file(path)
        with safe_open(path, framework="np") as content:
            sources = json.loads(content.metadata()["sources"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    records: list[Record] = []
    token, place = 0, 0
    for source, length, prompt_len in zip(
        sources, arrays["lengths"].tolist(), arrays["prompt_lengths"].tolist(), strict=True
    ):
        answer = slice(place, place + length - prompt_len)
        records.append(
            Record(
                source,
                arrays["tokens"][token : token + length],
                prompt_len,
                arrays["top_ids"][answer],
                arrays["top_logprobs"][answer],
            )
        )
        token, place = token + length, answer.stop
    return records


def save_weights(path: Path, records: Sequence[Record]) -> None:
    """Replace the file with the weights of all places of all records, in order."""
    scratch = path.with_name(f".{path.name}.tmp")
    save_file({"weights": np.concatenate([one.place_weights for one in records])}, scratch)
    scratch.rename(path)


def read_weights(path: Path, records: Sequence[Record]) -> list[Record]:
    """The records, weighted as those that were saved. Raises InputError."""
    try:
        weights = load_file(path)["weights"]
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    ends = np.cumsum([record.answer_len for record in records])
    if len(weights) != ends[-1]:
        raise InputError(f"{path}: was made from other records")
    parts = np.split(weights, ends[:-1])
    return [replace(one, weights=own) for one, own in zip(records, parts, strict=True)]
