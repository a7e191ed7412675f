"""`treeserve validate`: all mistakes of a configuration, or the placement that it asks for."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from actors.errors import ConfigError, ModelError
from cluster.config import Config, load_config
from cluster.kv_memory import check_kv_memory
from cluster.models import find_model, resolve_draft_model
from cluster.placement import plan_placement
from deploy.api_keys import read_keys


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


def _check_model(config: Config) -> None:
    """Raises ModelError, and ConfigError if what is asked for is no good for it."""
    folder = find_model(config.model.path)
    if folder is None:
        return
    check_kv_memory(config, folder)
    if config.llm.quantization != "none":
        from actors.llm.quantization import check_model

        try:
            check_model(folder, config.model.dtype, config.llm.tensor_parallel)
        except ModelError as error:
            raise ConfigError([f"llm.quantization: {error}"]) from error
