"""Whether weights can be streamed from files here."""

from __future__ import annotations


def why_no_files() -> str:
    """Why weights cannot be read from files here; empty if they can."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    return "" if AsyncIOBuilder().is_compatible(verbose=False) else "DeepSpeed finds no libaio"
