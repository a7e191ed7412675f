"""How glibc frees memory while a model is loaded piece by piece."""

from __future__ import annotations

import ctypes

_MMAP_THRESHOLD = -3
"""`M_MMAP_THRESHOLD` of glibc's `malloc.h`."""

_LOADING, _RUNNING = 1 << 20, 1 << 25
"""Bytes. The latter is where glibc stops to raise it by itself."""


def free_large_at_once() -> None:
    """Matrices go back to the system when they are freed. By itself glibc comes to keep them inside
    the heap, where those of layer after layer remain as holes that nothing fits into."""
    _map_from(_LOADING)


def keep_large_at_hand() -> None:
    """Back to the usual: what steps allocate and free again need not be cleared every time."""
    _map_from(_RUNNING)


def _map_from(num_bytes: int) -> None:
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # other C libraries have none
        mallopt(_MMAP_THRESHOLD, num_bytes)
