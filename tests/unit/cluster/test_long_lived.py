"""What is loaded is kept from the collector, and what comes later is not."""

from __future__ import annotations

import gc
import weakref

from cluster.long_lived import keep_what_is_loaded


class Node:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


def test_only_what_comes_later_is_collected() -> None:
    garbage = weakref.ref(Node())
    held = Node()
    loaded = weakref.ref(held)
    try:
        keep_what_is_loaded()
        assert garbage() is None, "what is garbage already is not kept"
        del held
        later = weakref.ref(Node())
        gc.collect()
        assert loaded() is not None and later() is None
    finally:
        gc.unfreeze()
    gc.collect()
    assert loaded() is None
