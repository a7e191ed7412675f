"""The few things of a server's own account that everyone asks for, by known servers' names."""

from __future__ import annotations

import math
from collections.abc import Callable

from loadtest.report.units import number, percent, seconds
from loadtest.scrape import ServerSide

Reading = Callable[[ServerSide], str | None]


def highlights(side: ServerSide) -> list[tuple[str, str]]:
    """What is known of this server: names and values."""
    return [(name, value) for name, read in READINGS if (value := read(side)) is not None]


def _highest(*names: str) -> Reading:
    def read(side: ServerSide) -> str | None:
        values = [value for name in names for value in _gauge(side, name)]
        return number(max(values)) if values else None

    return read


def _highest_share(used: str, of: str) -> Reading:
    def read(side: ServerSide) -> str | None:
        values, all_of = _gauge(side, used), _gauge(side, of)
        most = max(all_of, default=0.0)
        return percent(max(values) / most) if values and most else None

    return read


def _mean(histogram: str, form: Callable[[float | None], str]) -> Reading:
    return lambda side: None if (mean := side.mean(histogram)) is None else form(mean)


def _ratio(part: str, of: str) -> Reading:
    def read(side: ServerSide) -> str | None:
        parts, whole = side.total(part), side.total(of)
        return percent(parts / whole) if parts is not None and whole else None

    return read


def _gauge(side: ServerSide, name: str) -> list[float]:
    """Known values of a gauge; of several series the first."""
    for series, values in side.gauges.items():
        if series.partition("{")[0] == name:
            return [value for value in values if not math.isnan(value)]
    return []


READINGS: tuple[tuple[str, Reading], ...] = (
    ("most requests running", _highest("treeserve_requests_running", "vllm:num_requests_running")),
    ("most requests waiting", _highest("treeserve_requests_waiting", "vllm:num_requests_waiting")),
    (
        "most KV blocks used",
        _highest_share("treeserve_kv_blocks_used", "treeserve_kv_blocks_total"),
    ),
    ("draft nodes in a tree", _mean("treeserve_tree_nodes", number)),
    (
        "draft tokens accepted",
        _ratio(
            "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"
        ),
    ),
    ("TTFT by the server, mean", _mean("treeserve_time_to_first_token_seconds", seconds)),
    ("TPOT by the server, mean", _mean("treeserve_time_per_output_token_seconds", seconds)),
)
