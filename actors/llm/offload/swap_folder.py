"""Folders for the files of streamed weights, one for each rank, which do not outlive it.

A rank is killed without warning, so it cannot clean up behind itself: a shell that waits for the
rank's end removes the folder. It is no child of the rank, as Ray kills these with it. Should it be
killed all the same, the next rank that comes removes the folder: those in use are locked. What has
no lock of ours is never touched. Linux only.

The room is looked at before anything is written. What others with the same base are still going to
write counts as taken: each says in its lock file how much that is in all. Whoever else writes to
the disk is not known.
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

PREFIX = "treeserve-rank-"
LOCK = "lock"
BLOCK = 512
"""Bytes of what `stat` counts a file's room in."""

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
            awaited = sum(map(_still_to_come, base.glob(f"{PREFIX}*")))
            free = max(0, _free_bytes(base) - awaited)
            if free < num_bytes:
                raise ConfigError(
                    [f"llm.offload_dir: {num_bytes} bytes are needed, {base} has {free} left"]
                )
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            lock = (folder / LOCK).open("wb")
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(str(num_bytes).encode())
            lock.flush()
            _held.append(lock)
    except OSError as error:
        raise ConfigError([f"llm.offload_dir: {base}: {error.strerror}"]) from error
    _remove_at_end(folder)
    return folder


def _remove_abandoned(base: Path) -> None:
    for folder in base.glob(f"{PREFIX}*"):
        # In use, without a lock, somebody else's, or just going.
        with contextlib.suppress(OSError), (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _free_bytes(base: Path) -> int:
    return shutil.disk_usage(base).free


def _still_to_come(folder: Path) -> int:
    """Bytes that the rank of a folder has announced and not written yet."""
    # Just going, or not ours.
    with contextlib.suppress(OSError, ValueError):
        announced = int((folder / LOCK).read_bytes())
        files = [file for file in folder.rglob("*") if file.is_file() and file.name != LOCK]
        return max(0, announced - sum(file.stat().st_blocks * BLOCK for file in files))
    return 0


def _remove_at_end(folder: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as waiting:
        subprocess.run(
            ["/bin/sh", "-c", 'exec 3<&0; { read _ <&3; rm -rf "$0"; } &', folder],
            stdin=waiting,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )
    _held.append(os.fdopen(writing, "wb"))
