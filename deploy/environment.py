"""What Ray Serve reads from the environment; set before Ray is first imported.

Chosen for latency: see `deploy.app`. Imports nothing of Ray, so that it can come first.
"""

from __future__ import annotations

import os


def prepare_environment() -> None:
    """For this process and every one that it starts."""
    os.environ.update(
        # Between deployments: gRPC streams instead of Ray's actor calls, and one event loop.
        RAY_SERVE_USE_GRPC_BY_DEFAULT="1",
        RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD="0",
        RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP="0",
        RAY_SERVE_LOG_TO_STDERR="0",
        # What many requests say at once goes in one message: gRPC's 4 MB would not hold it.
        RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH=str(1 << 30),
    )
