"""Ray's clusters and what they have room for, and the mapping of Ray's errors to ours.

A cluster of our own on this machine: daemons and actors listen on loopback, no dashboard, and
every call between them carries a token that is drawn for this cluster and lives in the environment
of its processes only. How a cluster that is already there listens is its own business.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.errors import PeerError, PeerUnavailable, TreeServeError
from cluster import daemons
from cluster.placement import Placement, missing

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup as RayPlacementGroup

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 100_000_000
"""Ray's least but a little: nothing large passes through it."""

OPENMP_SPINS = "2000"
"""How often a thread that waits for its OpenMP team looks before it sleeps: some tens of
microseconds, which outlasts the gaps within a step. The default is milliseconds, and takes a core
from whoever works between two steps: manager, draft model, ingress."""

EXIT_GRACE_S = 10.0
"""How long the cluster's processes may take to end by themselves."""

LOST_GRACE_S = 2.0
"""What Ray may take to let go of a cluster that is broken."""

NO_ROOM_LEFT = "others use what the cluster has"

ENVIRONMENT = {
    # Takes 127.0.0.1 for this node's address, despite the name; daemons then bind to it alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's own choice is 15: any other busy process would get nearly all of a core we need.
    "RAY_worker_niceness": "0",
    # Weights on huge pages where Linux offers them on request: a step takes 8 % less.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@dataclass(frozen=True)
class Node:
    """A machine of the cluster.

    Attributes:
        id: Ray's.
        host: the address under which Ray's other nodes reach it.
    """

    id: str
    host: str


def prepare_environment() -> None:
    """Set what Ray reads from the environment when it is first imported; keeps what is set."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Ray would give an actor as many threads as it has logical CPUs.
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    os.environ.setdefault("GOMP_SPINCOUNT", OPENMP_SPINS)
    if os.environ["RAY_AUTH_MODE"] == "token":
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def start_cluster(num_cpus: int) -> None:
    """Start a cluster on this machine and connect to it.

    Args:
        num_cpus: logical CPUs that are needed; there are at least as many as cores.

    Raises:
        PeerError: Ray does not come up.
    """
    prepare_environment()
    import ray

    try:
        ray.init(
            address="local",
            num_cpus=max(num_cpus, os.cpu_count() or 1),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            logging_level="ERROR",
            log_to_driver=False,
        )
    except (RuntimeError, OSError, ray.exceptions.RayError) as error:
        raise PeerError(f"Ray cannot be started: {error}") from error
    # Standard output belongs to our answers; Ray has no setting for what it tells of lost workers.
    ray._private.worker.print_to_stdstream = _log_complaint


def _log_complaint(complaint: Mapping[str, Any], **_: object) -> None:
    for line in complaint.get("lines", ()):
        logger.info("Ray: %s", line)


def join_cluster() -> None:
    """Connect to the cluster that this machine belongs to.

    Raises:
        PeerUnavailable: there is none that lets us in.
    """
    import ray

    try:
        ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, RuntimeError, OSError, ray.exceptions.RayError) as error:
        raise PeerUnavailable(f"no Ray cluster to join: {first_line(error)}") from error


def stop_cluster() -> None:
    """Disconnect, and end every process of the cluster; does nothing if there is none.

    Of a cluster that has lost a daemon, Ray would wait for answers that do not come: its processes
    are killed, and Ray is left to itself.
    """
    import ray

    processes = daemons.processes()
    if processes and not daemons.are_alive():
        daemons.kill(processes)
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(LOST_GRACE_S)
        return
    ray.shutdown()
    daemons.end(processes, EXIT_GRACE_S)


@contextmanager
def _errors_as_ours() -> Iterator[None]:
    """Ray's errors become ours. It tells of a lost connection by those of Python too."""
    import ray.exceptions as foreign

    try:
        yield
    except (foreign.RayError, RuntimeError, OSError) as error:
        raise map_error(error) from error


@_errors_as_ours()
def num_gpus() -> int:
    """GPUs of the cluster. Raises PeerError."""
    import ray

    return int(ray.cluster_resources().get("GPU", 0))


@_errors_as_ours()
def own_node() -> Node:
    """Where this process runs. Raises PeerError."""
    import ray
    from ray.util import get_node_ip_address

    return Node(ray.get_runtime_context().get_node_id(), get_node_ip_address())


@_errors_as_ours()
def remember(key: str, value: bytes) -> None:
    """Keep a value as long as the cluster lives, over any process's death. Raises PeerError."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(key, value, namespace="treeserve")


@_errors_as_ours()
def recall(key: str) -> bytes | None:
    """What was kept under a key; None if nothing was. Raises PeerError."""
    from ray.experimental.internal_kv import _internal_kv_get

    value: bytes | None = _internal_kv_get(key, namespace="treeserve")
    return value


@_errors_as_ours()
def node_resources() -> list[dict[str, float]]:
    """What each node of the cluster has, whoever uses it now. Raises PeerError."""
    import ray

    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


@_errors_as_ours()
def use_placement_group(placement: Placement, timeout_s: float) -> PlacementGroup:
    """The placement group that this actor runs in, else a new one.

    Raises:
        PeerUnavailable: the cluster has no room for it; says what is missing.
        PeerError: Ray failed.
    """
    from ray.util import get_current_placement_group, placement_group

    if current := get_current_placement_group():
        return PlacementGroup(current, placement, owned=False)
    require_room(placement)
    group = placement_group(placement.bundles, strategy=placement.strategy)
    if not group.wait(timeout_s):
        _remove_group(group)
        raise PeerUnavailable(f"{NO_ROOM_LEFT}\n{placement.describe()}")
    return PlacementGroup(group, placement, owned=True)


def require_room(placement: Placement) -> None:
    """Raise PeerUnavailable if the cluster could never hold the placement; says what is missing."""
    if problems := missing(placement, node_resources()):
        raise PeerUnavailable("the cluster has no room: " + "; ".join(problems))


class PlacementGroup:
    """Reserved resources; given back by `remove` if we made the reservation."""

    def __init__(self, handle: RayPlacementGroup, placement: Placement, owned: bool) -> None:
        self.handle = handle
        self._placement = placement
        self._owned = owned

    @_errors_as_ours()
    def has_nodes(self, bundles: Collection[int]) -> bool:
        """True if each of these bundles has a node.

        Raises:
            PeerUnavailable: one has none, and the cluster could not hold all; says what is missing.
            PeerError: Ray failed.
        """
        from ray.util import placement_group_table

        nodes = placement_group_table(self.handle)["bundles_to_node_id"]
        if all(nodes.get(bundle) for bundle in bundles):
            return True
        require_room(self._placement)
        return False

    def remove(self) -> None:
        if self._owned:
            _remove_group(self.handle)


def map_error(error: Exception) -> TreeServeError:
    """One of our errors for one that Ray raises, or for one of ours that it has wrapped."""
    import ray.exceptions as foreign

    cause = getattr(error, "cause", error)
    if isinstance(cause, TreeServeError):
        return cause
    if isinstance(error, foreign.RayTaskError):
        return PeerError(f"an actor failed: {type(cause).__name__}: {cause}")
    if isinstance(error, foreign.RayActorError):
        return PeerUnavailable(f"an actor died: {first_line(error)}")
    return PeerError(f"Ray failed: {type(error).__name__}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of an error's text; Ray's go on with the whole story of a process."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _remove_group(handle: RayPlacementGroup) -> None:
    from ray.util import remove_placement_group

    remove_placement_group(handle)
