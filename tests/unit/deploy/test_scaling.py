"""How many managers a load asks for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cluster.load import LoadSignals
from deploy.scaling import ManagerScaling, wanted_managers


def load(waiting: float = 0, rate: float = 0, occupancy: float = 0) -> LoadSignals:
    return LoadSignals(waiting, rate, occupancy)


@pytest.mark.parametrize(
    ("loads", "wanted"),
    [
        ([load()], 1),
        ([load(), load()], 1),
        ([load(occupancy=0.8)], 1),
        ([load(occupancy=0.81)], 2),
        ([load(occupancy=0.8), load(occupancy=0.8)], 2),
        ([load(occupancy=0.4), load(occupancy=0.4)], 1),
        ([load(occupancy=1.0)] * 3, 4),
        # 100 tokens are taken each second, and may wait for two.
        ([load(waiting=200, rate=100)], 1),
        ([load(waiting=201, rate=100)], 2),
        ([load(waiting=90_000, rate=100)], 2),
        ([load(waiting=600, rate=100), load(rate=100)], 3),
        # Nothing has been taken lately: what waits may wait for ever.
        ([load(waiting=1, occupancy=0.1)], 2),
        ([load(waiting=1)] * 3, 6),
    ],
)
def test_the_number_follows_queue_rate_and_occupancy(loads: list[LoadSignals], wanted: int) -> None:
    assert wanted_managers(loads, wait_s=2.0, occupancy=0.8) == wanted


def test_many_requests_alone_ask_for_nothing() -> None:
    """Serve's own policies go by their number."""
    assert wanted_managers([load(waiting=50, rate=400, occupancy=0.3)], 2.0, 0.8) == 1


def context(**metrics: dict[str, float]) -> SimpleNamespace:
    return SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=3)


def test_the_policy_reads_what_serve_gathers() -> None:
    policy = ManagerScaling(wait_s=2.0, occupancy=0.5)
    reported = context(
        running_requests={"a": 9.0, "b": 9.0, "c": 9.0},
        waiting_tokens={"a": 0.0, "b": 0.0},
        admitted_tokens_per_s={"a": 5.0, "b": 0.0},
        occupancy={"a": 0.5, "b": 0.9},
    )
    assert policy(reported) == (3, {})


@pytest.mark.parametrize("reported", [context(), context(waiting_tokens={"a": 1.0})])
def test_before_anybody_has_reported_nothing_changes(reported: SimpleNamespace) -> None:
    assert ManagerScaling(2.0, 0.8)(reported) == (3, {})
