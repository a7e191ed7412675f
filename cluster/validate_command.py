"""`treeserve validate`: all mistakes of a configuration, or the placement that it asks for."""

from __future__ import annotations

import argparse

from cluster.config import load_config
from cluster.models import resolve_draft_model
from cluster.placement import plan_placement


def run(arguments: argparse.Namespace) -> int:
    """Starts nothing and reads no weights.

    Raises:
        ConfigError: with every mistake.
        ModelError: a draft model is not there.
    """
    config = load_config(arguments.config)
    for ssm in config.ssms:
        resolve_draft_model(ssm.path)
    print(f"{arguments.config} is valid: serves {config.model.name}")
    print(plan_placement(config).describe())
    return 0
