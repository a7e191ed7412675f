"""The `ssms` section of the configuration: one entry for each draft model."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class SSMConfig(BaseModel):
    """One draft model.

    Attributes:
        path: its folder, or `embedded:` and the name of one that comes with TreeServe.
        replicas: actors that run it, each for its share of the requests.
        max_nodes, max_depth: of its trees at most; a request may ask for less.
        kv_memory_bytes: for the keys and values of all sessions.
        num_threads: CPU threads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Annotated[str, Field(min_length=1)]
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    max_nodes: Annotated[int, Field(ge=1, le=256)] = 16
    max_depth: Annotated[int, Field(ge=1, le=32)] = 5
    kv_memory_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 28
    num_threads: Annotated[int, Field(ge=1, le=1024)] = 1
