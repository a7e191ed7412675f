"""`treeserve drain`: on a machine that is about to go away, let requests end.

For a pod's preStop hook: the application runs on a Ray cluster that others have started. Assumes
one ingress, on the machine whose port answers; where none does, there is nothing to wait for.
"""

from __future__ import annotations

import argparse
import socket

from cluster import ray_api
from deploy.environment import prepare_environment

CONNECT_TIMEOUT_S = 5.0


def run(arguments: argparse.Namespace) -> int:
    """Returns when nothing runs any more. Raises PeerError if the cluster cannot be reached."""
    if not is_served(arguments.port):
        return 0
    prepare_environment()
    ray_api.join_cluster()
    from deploy import running

    running.drain_serving(arguments.grace_s)
    return 0


def is_served(port: int) -> bool:
    """True if somebody listens on this machine's port."""
    try:
        with socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
