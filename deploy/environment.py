"""What Ray Serve reads from the environment; set before Ray is first imported.

Chosen for latency: see `deploy.app`. Imports nothing of Ray, so that it can come first.
"""

from __future__ import annotations

import os


def prepare_environment(port: int) -> None:
    """For this process and every one that it starts.

    Args:
        port: where the ingress's own HTTP server is to listen.
    """
    os.environ.update(
        # The ingress replica listens itself, on the one port of this range.
        RAY_SERVE_ENABLE_DIRECT_INGRESS="1",
        RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT=str(port),
        RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT=str(port + 1),
        # No load balancer stands before it that would have to be told first.
        RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S="0",
        RAY_SERVE_PORT_QUARANTINE_S="0",
        # Between deployments: gRPC streams instead of Ray's actor calls, and one event loop.
        RAY_SERVE_USE_GRPC_BY_DEFAULT="1",
        RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD="0",
        RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP="0",
        RAY_SERVE_LOG_TO_STDERR="0",
    )
