"""Compile the kernels once per machine and compiler, and load them.

The compiler is the system's own (`$CXX` or `c++`); the result is kept in the user's cache under a
name that depends on the sources, the compiler and the CPU. Without a compiler, or where something
fails, there are no kernels, and the caller goes on with plain torch operations.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from actors.paths import cache_root

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_SOURCES = (
    "kernels.cpp",
    "attention.h",
    "best.h",
    "layers.h",
    "noise.h",
    "products.h",
    "rows.h",
    "tiles.h",
    "vectors.h",
    "weights.h",
)
_FAST_HERE = ("-O3", "-march=native")
# No vector crosses the library's border, so that it does not matter how vectors are passed.
_FLAGS = ("-std=c++17", "-fopenmp", "-fPIC", "-shared", "-Wno-psabi")
_COMPILE_TIMEOUT_S = 120.0


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """The compiled kernels; None if they cannot be had here. torch must be imported before: its
    OpenMP runtime is then theirs too, and there is one pool of threads.

    Set `TREESERVE_NATIVE=0` to do without.
    """
    if os.environ.get("TREESERVE_NATIVE") == "0":
        return None
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        logger.warning("no C++ compiler: steps will be slower than they could be")
        return None
    try:
        return ctypes.CDLL(str(_built(compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        logger.warning("native kernels cannot be built, steps will be slower: %s", detail)
        return None


def compile_kernels(compiler: str, library: Path, flags: Sequence[str] = _FAST_HERE) -> None:
    """Compile the kernels into a library, by default for this CPU.

    Raises:
        SubprocessError: the compiler fails, or takes too long.
    """
    command = [compiler, *_FLAGS, *flags, "-o", str(library), str(_FOLDER / "kernels.cpp")]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S)


def _built(compiler: str) -> Path:
    """The library's file, compiled if it is not there yet; safe under several starters at once."""
    target = cache_root() / "native" / f"kernels-{_fingerprint(compiler)}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            library = Path(folder) / "kernels.so"
            compile_kernels(compiler, library)
            library.replace(target)
    return target


def _fingerprint(compiler: str) -> str:
    version = subprocess.run(
        [compiler, "--version"], check=True, capture_output=True, text=True, timeout=30.0
    ).stdout
    digest = hashlib.sha256("\0".join((version, *_FLAGS, *_FAST_HERE, _cpu())).encode())
    for name in _SOURCES:
        digest.update((_FOLDER / name).read_bytes())
    return digest.hexdigest()[:16]


def _cpu() -> str:
    """What `-march=native` means here: a cache may be shared between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
