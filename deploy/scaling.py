"""How many request managers there should be: a policy for Ray Serve's autoscaler.

Serve counts calls, and an ingress has one open call to each manager, whatever it asks for. So the
managers report what they know themselves (`cluster.load`): prompt tokens that wait, how fast they
leave the queue, and how full they are. Delays and bounds are Serve's. Knows no Ray: its controller
runs this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.load import LoadSignals

MAX_GROWTH = 2.0
"""At most so many times as many managers at once: what waits may be less than it looks."""


def wanted_managers(loads: Sequence[LoadSignals], wait_s: float, occupancy: float) -> int:
    """How many managers the load of those that there are asks for.

    So many that none is fuller than `occupancy`; and if what waits will wait longer than `wait_s`,
    more than there are in the same proportion. Where nothing has left the queue lately, nobody
    knows how long that is, and what waits counts as much.

    Args:
        loads: of each manager.
        wait_s: how long requests may wait.
        occupancy: how full a manager may be, up to 1.
    """
    wanted = sum(load.occupancy for load in loads) / occupancy
    waiting = sum(load.waiting_tokens for load in loads)
    admitted_per_s = sum(load.admitted_tokens_per_s for load in loads)
    if waiting > admitted_per_s * wait_s:
        growth = waiting / (admitted_per_s * wait_s) if admitted_per_s else MAX_GROWTH
        wanted = max(wanted, len(loads) * min(growth, MAX_GROWTH))
    return max(1, math.ceil(round(wanted, 6)))


class ManagerScaling:
    """The policy, as Serve calls it.

    Args:
        wait_s, occupancy: as in `wanted_managers`.
    """

    def __init__(self, wait_s: float, occupancy: float) -> None:
        self._wait_s = wait_s
        self._occupancy = occupancy

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:  # noqa: ANN401  # Serve's
        loads = loads_of(context.aggregated_metrics or {})
        if not loads:  # nobody has reported yet
            return context.target_num_replicas, {}
        return wanted_managers(loads, self._wait_s, self._occupancy), {}


def loads_of(reported: Mapping[str, Mapping[Any, float]]) -> list[LoadSignals]:
    """What each replica reports, from values by name and replica; the other names are Serve's."""
    names = LoadSignals._fields
    replicas = set.intersection(*(set(reported.get(name, ())) for name in names))
    return [LoadSignals(*(reported[name][replica] for name in names)) for replica in replicas]
