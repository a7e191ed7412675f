"""Where TreeServe keeps what it makes once: unpacked models, compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "TREESERVE_CACHE"


def cache_root() -> Path:
    """The user's cache folder for TreeServe; it may not exist yet."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    base = Path(shared) if shared else Path.home() / ".cache"
    return base / "treeserve"
