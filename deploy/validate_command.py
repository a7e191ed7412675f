"""`treeserve validate`: all mistakes of a configuration, or the placement that it asks for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from actors.errors import ConfigError, ModelError
from cluster.config import Config, load_config
from cluster.kv_memory import check_kv_memory
from cluster.models import find_model, resolve_draft_model
from cluster.placement import plan_placement
from deploy.api_keys import read_keys

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""What the number of a layer's experts is called in a model's `config.json`."""


def run(arguments: argparse.Namespace) -> int:
    """Starts nothing, fetches nothing and reads no weights.

    Raises:
        ConfigError: with every mistake.
    """
    config = load_config(arguments.config)
    if problems := _problems(config):
        raise ConfigError(problems)
    print(f"{arguments.config} is valid: serves {config.model.name}")
    print(plan_placement(config).describe())
    if config.llm.tensor_parallel > 1 and _has_experts(config):
        print(
            "llm.tensor_parallel splits the attention alone: every rank of a stage holds all of a "
            "layer's experts; llm.pipeline_parallel makes room for them"
        )
    return 0


def _problems(config: Config) -> list[str]:
    """What is wrong with the files that a configuration names."""
    checks: list[tuple[str, Callable[[], object]]] = [
        ("model.path", partial(_check_model, config)),
        *(
            (f"ssms.{index}.path", partial(resolve_draft_model, ssm.path))
            for index, ssm in enumerate(config.ssms)
        ),
    ]
    if config.api.api_keys_file is not None:
        checks.append(("api.api_keys_file", partial(read_keys, Path(config.api.api_keys_file))))
    problems: list[str] = []
    for field, check in checks:
        try:
            check()
        except ConfigError as error:
            problems += error.problems
        except ModelError as error:
            problems.append(f"{field}: {error}")
    return problems


def _has_experts(config: Config) -> bool:
    """True if the model is here, and a mixture of experts."""
    folder = find_model(config.model.path)
    try:
        content = json.loads((folder / "config.json").read_bytes()) if folder else {}
        return any(content.get(name) for name in EXPERT_COUNTS)
    except (OSError, ValueError, AttributeError):
        return False  # what is wrong with it is told when it is loaded


def _check_model(config: Config) -> None:
    """Raises ModelError, and ConfigError if the KV memory is no good for it."""
    folder = find_model(config.model.path)
    if folder is not None:
        check_kv_memory(config, folder)
