"""Calls reach the manager that they are for, and nobody spins for one that is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.request_router import PendingRequest

from deploy.manager_handle import ToOneManager

REPLICAS: Any = [
    SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in ("a", "b", "c")
]


@pytest.mark.parametrize(("wanted", "index"), [("b", 1), ("gone", None), ("", None)])
async def test_a_call_goes_to_the_replica_that_it_names(wanted: str, index: int | None) -> None:
    metadata: Any = SimpleNamespace(session_id=wanted)
    pending = PendingRequest(args=[], kwargs={}, metadata=metadata)
    chosen = await ToOneManager.choose_replicas(None, REPLICAS, pending)  # type: ignore[arg-type]
    assert chosen == [[] if index is None else [REPLICAS[index]]]
    assert pending.routing_context.should_backoff == (index is None), (
        "Serve waits before it retries"
    )
