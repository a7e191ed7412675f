"""`treeserve validate`: all mistakes of a configuration, or the placement that it asks for."""

from __future__ import annotations

import argparse

from cluster.config import load_config
from cluster.placement import plan_placement


def run(arguments: argparse.Namespace) -> int:
    """Starts nothing and reads no model. Raises ConfigError with every mistake."""
    config = load_config(arguments.config)
    print(f"{arguments.config} is valid: serves {config.model.name}")
    print(plan_placement(config).describe())
    return 0
