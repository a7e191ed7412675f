"""`treeserve drain`: does nothing where nothing is served, and waits where something is."""

from __future__ import annotations

import pytest

from cluster import cli, ray_api
from deploy import drain_command, running


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was called."""
    calls: list[object] = []
    monkeypatch.setattr(ray_api, "join_cluster", lambda: calls.append("joined"))
    monkeypatch.setattr(running, "drain_serving", calls.append)
    monkeypatch.setattr(drain_command, "is_served", lambda port: port == 8123)
    return calls


def test_where_nothing_is_served_no_cluster_is_joined(done: list[object]) -> None:
    assert cli.main(["drain"]) == 0
    assert done == []


def test_where_something_is_served_it_ends_first(done: list[object]) -> None:
    assert cli.main(["drain", "--port", "8123", "--grace-s", "45"]) == 0
    assert done == ["joined", 45.0]
