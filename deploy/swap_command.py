"""`treeserve swap`: put a configuration's draft models in the place of those that a server runs.

For an application on a Ray cluster that others have started, from one of its machines. A server by
`treeserve serve` has a cluster that lets nobody in; it takes SIGHUP instead. Of the configuration
only `ssms` counts.
"""

from __future__ import annotations

import argparse

from cluster import ray_api
from cluster.config import Config, load_config
from deploy.environment import prepare_environment


def run(arguments: argparse.Namespace) -> int:
    """Returns when the draft models have taken over.

    Raises:
        ConfigError: the configuration has mistakes, or its draft models have no room.
        ModelError: one of them cannot be used; those that ran still do.
        PeerError: the cluster cannot be reached, or one of them cannot be started.
    """
    config = load_config(arguments.config)
    prepare_environment()
    ray_api.join_cluster()
    from deploy import running

    running.swap_draft_models(config.ssms)
    print(report(config))
    return 0


def report(config: Config) -> str:
    """A line on what drafts now."""
    return f"Draft models: {', '.join(ssm.path for ssm in config.ssms)}"
