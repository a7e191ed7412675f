"""`treeserve validate`: all mistakes of a configuration, or the placement that it asks for."""

from __future__ import annotations

import argparse
from pathlib import Path

from cluster.model_sizes import read_sizes
from cluster.placement import plan_placement
from deploy.named_files import check_files, load_with_files


def run(arguments: argparse.Namespace) -> int:
    """Starts nothing, fetches nothing and reads no weights.

    Raises:
        ConfigError: with every mistake.
    """
    config = load_with_files(arguments.config)
    model = check_files(config)
    print(f"{arguments.config} is valid: serves {config.model.name}")
    print(plan_placement(config).describe())
    if config.llm.replicas.max > 1:
        print(
            f"so much for each request manager, of which there are up to {config.llm.replicas.max}"
        )
    if model is not None and config.llm.tensor_parallel > 1 and _has_experts(model):
        print(
            "llm.tensor_parallel splits attention and layers without experts alone: every rank of "
            "a stage holds all of a layer's experts; llm.pipeline_parallel makes room for them"
        )
    return 0


def _has_experts(folder: Path) -> bool:
    """True if the model in a folder is a mixture of experts, as far as it says."""
    sizes = read_sizes(folder)
    return sizes is not None and sizes.num_experts > 0
