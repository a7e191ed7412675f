"""`treeserve validate`: all mistakes of a configuration, or the placement that it asks for."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cluster.config import load_config
from cluster.placement import plan_placement
from deploy.named_files import check_files

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""What the number of a layer's experts is called in a model's `config.json`."""


def run(arguments: argparse.Namespace) -> int:
    """Starts nothing, fetches nothing and reads no weights.

    Raises:
        ConfigError: with every mistake.
    """
    config = load_config(arguments.config)
    model = check_files(config)
    print(f"{arguments.config} is valid: serves {config.model.name}")
    print(plan_placement(config).describe())
    if model is not None and config.llm.tensor_parallel > 1 and _has_experts(model):
        print(
            "llm.tensor_parallel splits the attention alone: every rank of a stage holds all of a "
            "layer's experts; llm.pipeline_parallel makes room for them"
        )
    return 0


def _has_experts(folder: Path) -> bool:
    """True if the model in a folder is a mixture of experts."""
    try:
        content = json.loads((folder / "config.json").read_bytes())
        return any(content.get(name) for name in EXPERT_COUNTS)
    except (OSError, ValueError, AttributeError):
        return False  # what is wrong with it is told when it is loaded
