"""What a process has made by the time it is ready lives as long as the process.

A full collection would walk all of it again and again, for 0.1 s each time with a tokenizer's
tables and the modules of torch and `transformers`: a pause in every stream.
"""

from __future__ import annotations

import gc


def keep_what_is_loaded() -> None:
    """Take everything that is reachable now out of the sight of Python's collector, for good."""
    gc.collect()
    gc.freeze()
