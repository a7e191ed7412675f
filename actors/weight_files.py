"""Which files of a model folder hold its weights, and the hash that names them.

A folder in the layout of `save_pretrained`, safetensors only. The hash ties a draft model to the
LLM that it was tuned for. Reads no tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from actors.errors import ModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The folder's weight files, sorted by name. Raises ModelError if some are missing."""
    if (folder / INDEX_FILE).is_file():
        try:
            index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
            names = sorted(set(index["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{INDEX_FILE} is damaged") from error
    else:
        names = [SINGLE_FILE]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing and any(folder.glob("*.bin")):
        raise ModelError("its weights are not in safetensors files (pickled ones are not read)")
    if missing:
        raise ModelError(f"weight files are missing: {', '.join(missing)}")
    return [folder / name for name in names]


def hash_files(files: Sequence[Path]) -> str:
    """sha256 over the name and content of every file, in the order given."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
