"""Folders for the files of streamed weights, one for each rank, which do not outlive it.

A rank is killed without warning, so it cannot clean up behind itself: a shell that waits for the
rank's end removes the folder. Should that be killed as well, the next rank that comes removes it:
folders in use are locked. Linux only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from actors.errors import ConfigError

PREFIX = "rank-"
LOCK = "lock"

_held: list[IO[bytes]] = []
"""Locks and pipes that end with this process."""


def claim_swap_folder(base: Path, num_bytes: int) -> Path:
    """A new folder in `base`, for as long as this process lives.

    Args:
        num_bytes: that are going to be written.

    Raises:
        ConfigError: it cannot be made, or there is too little room.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
        with (base / LOCK).open("wb") as alone:
            fcntl.flock(alone, fcntl.LOCK_EX)
            _remove_abandoned(base)
            free = shutil.disk_usage(base).free
            if free < num_bytes:
                raise ConfigError(
                    [f"llm.offload_dir: {num_bytes} bytes are needed, {base} has {free} left"]
                )
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            lock = (folder / LOCK).open("wb")
            fcntl.flock(lock, fcntl.LOCK_EX)
            _held.append(lock)
    except OSError as error:
        raise ConfigError([f"llm.offload_dir: {base}: {error.strerror}"]) from error
    _remove_at_end(folder)
    return folder


def _remove_abandoned(base: Path) -> None:
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(BlockingIOError), (folder / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _remove_at_end(folder: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as waiting:
        subprocess.Popen(
            ["/bin/sh", "-c", 'read _; rm -rf "$0"', folder],
            stdin=waiting,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    _held.append(os.fdopen(writing, "wb"))
