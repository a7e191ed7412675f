"""DeepSpeed's reading and writing of files: compiled once for a machine, with libaio.

torch marks a build that goes on by a file, which stays behind if the process is killed and then
holds up every later one for good. Builds take turns under a lock here, so a mark that is found
belongs to nobody.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from pathlib import Path

import torch

from actors.errors import ConfigError
from actors.paths import cache_root

_MARK = "lock"


def load_async_io() -> None:
    """Compile it if that was not done before, and load it; takes a minute the first time.

    Raises:
        ConfigError: it cannot be had here; says what is missing.
    """
    from deepspeed.ops.op_builder import AsyncIOBuilder

    builder = AsyncIOBuilder()
    if not builder.is_compatible(verbose=False):
        raise _missing("libaio and its headers (Debian: apt-get install libaio-dev)")
    folder = build_folder()
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    # Whoever calls a command by its path may not have the environment's others on the search path.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "turn").open("wb") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            for mark in folder.glob(f"*/{_MARK}"):
                mark.unlink()
            builder.load(verbose=False)
    except (RuntimeError, OSError, ImportError) as error:
        raise _missing(f"DeepSpeed's async_io, which cannot be built: {error}") from error


def build_folder() -> Path:
    """Where it is built: what is built is bound to the environment that it was built in."""
    environment = hashlib.blake2b(sys.prefix.encode(), digest_size=6).hexdigest()
    return cache_root() / f"deepspeed-torch-{torch.__version__}-{environment}"


def _missing(what: str) -> ConfigError:
    return ConfigError([f"llm.offload: nvme needs {what}"])
