"""`treeserve validate`: all mistakes of a configuration, or the placement that it asks for."""

from __future__ import annotations

import argparse

from cluster.config import load_config
from cluster.placement import plan_placement
from deploy.named_files import check_files


def run(arguments: argparse.Namespace) -> int:
    """Starts nothing, fetches nothing and reads no weights.

    Raises:
        ConfigError: with every mistake.
    """
    config = load_config(arguments.config)
    check_files(config)
    print(f"{arguments.config} is valid: serves {config.model.name}")
    print(plan_placement(config).describe())
    return 0
