"""What a manager tells of its load."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from cluster.load import WINDOW_S, Load, LoadSignals
from cluster.metric_maker import MetricMaker


def test_the_signals_follow_what_happens() -> None:
    now_s = 100.0
    registry = CollectorRegistry()
    load = Load(MetricMaker(registry, "m"), max_running=4, clock=lambda: now_s)
    assert load.signals() == LoadSignals(0, 0.0, 0.0)
    load.now(running=1, waiting_tokens=70, kv_used=10, kv_total=100)
    load.admitted(300)
    load.admitted(0)
    assert load.signals() == LoadSignals(70, 300 / WINDOW_S, 0.25), "places are taken more than KV"
    now_s += WINDOW_S / 2
    load.admitted(100)
    assert load.signals().admitted_tokens_per_s == 400 / WINDOW_S
    now_s += WINDOW_S / 2 + 0.1
    assert load.signals().admitted_tokens_per_s == 100 / WINDOW_S
    load.now(running=0, waiting_tokens=0, kv_used=90, kv_total=100)
    assert load.signals().occupancy == 0.9
    for name, value in (("waiting_tokens", 0), ("occupancy", 0.9), ("admitted_tokens_total", 400)):
        assert registry.get_sample_value(f"treeserve_{name}", {"model_name": "m"}) == value
