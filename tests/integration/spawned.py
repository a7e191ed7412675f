"""A process apart that serves something, and can be killed."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess


@contextlib.contextmanager
def spawned(
    serve: Callable[..., None], patience_s: float, *arguments: object
) -> Iterator[tuple[BaseProcess, str]]:
    """The process, and the address that it serves at.

    Args:
        serve: run in the process with a connection, over which it sends its address, and
            `arguments`.
        patience_s: how long it may take to send it.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
    child.start()
    try:
        assert ours.poll(patience_s)
        yield child, ours.recv()
    finally:
        child.kill()
        child.join()
        child.close()
        ours.close()
        theirs.close()
