"""Whether the files that a configuration names are good, as far as can be told before their use.

All that is wrong with them at once, and the same for `treeserve serve` and `treeserve validate`.
Fetches nothing and reads no weights: a model that is not here is looked at when it has come.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from actors.errors import ConfigError, ModelError, UnavailableError
from cluster.config import Config, load_config, sound_sections
from cluster.kv_memory import check_kv_memory
from cluster.model_sizes import check_split
from cluster.models import find_model, resolve_draft_model
from cluster.tokenizer import load_vocabulary
from deploy.api_keys import read_keys

Result = TypeVar("Result")


def load_with_files(path: Path) -> Config:
    """Read a configuration; what is wrong with it is told with what is wrong with its files.

    Files that are named beside a mistake of the same section are not looked at.

    Raises:
        ConfigError: with every mistake of the configuration, and then those of files.
    """
    try:
        return load_config(path)
    except ConfigError as error:
        found = _Findings()
        _look_at_each(sound_sections(path), found, None)
        raise ConfigError([*error.problems, *found.problems]) from error


def check_files(config: Config, folder: Path | None = None) -> Path | None:
    """The folder of the model; None if that is still to be unpacked or fetched.

    Args:
        folder: of the model, where it is known.

    Raises:
        ConfigError: with every problem.
    """
    found = _Findings()
    model = _look_at_each(config, found, folder)
    if model is not None:
        found.tried("llm", check_split, config, model)
        found.tried("scheduler.kv_memory_bytes", check_kv_memory, config, model)
        if config.llm.quantization != "none":
            found.tried("llm.quantization", _check_quantizable, config, model)
    if found.problems:
        raise ConfigError(found.problems)
    return model


class _Findings:
    """What is wrong."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def tried(self, field: str, check: Callable[..., Result], *arguments: object) -> Result | None:
        """What a check returns; None if it finds something."""
        try:
            return check(*arguments)
        except ConfigError as error:
            self.problems.extend(error.problems)
        except (ModelError, UnavailableError) as error:
            self.problems.append(f"{field}: {error}")
        return None


def _look_at_each(config: Config, found: _Findings, folder: Path | None) -> Path | None:
    """The files, each by itself; returns the folder of the model, if it is here."""
    model = folder or found.tried("model.path", find_model, config.model.path)
    if model is not None:
        found.tried("model.path", load_vocabulary, model)
    for index, ssm in enumerate(config.ssms):
        found.tried(f"ssms.{index}.path", resolve_draft_model, ssm.path)
    if (keys := config.api.api_keys_file) is not None:
        found.tried("api.api_keys_file", read_keys, Path(keys))
    if config.grpc.tls is not None:
        found.tried("grpc.tls", config.grpc.tls.check)
    return model


def _check_quantizable(config: Config, folder: Path) -> None:
    """Raises ModelError."""
    from actors.llm.quantization import check_model  # imported late: it needs torch

    check_model(folder, config.model.dtype, config.llm.tensor_parallel)
