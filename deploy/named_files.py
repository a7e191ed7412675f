"""Whether the files that a configuration names are good, as far as can be told before their use.

All that is wrong with them at once, and the same for `treeserve serve` and `treeserve validate`.
Fetches nothing and reads no weights: a model that is not here is looked at when it has come.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from actors.errors import ConfigError, ModelError, UnavailableError
from cluster.config import Config
from cluster.kv_memory import check_kv_memory
from cluster.model_sizes import check_split
from cluster.models import find_model, resolve_draft_model
from cluster.tokenizer import load_vocabulary
from deploy.api_keys import read_keys

Result = TypeVar("Result")


def check_files(config: Config, folder: Path | None = None) -> Path | None:
    """The folder of the model; None if that is still to be unpacked or fetched.

    Args:
        folder: of the model, where it is known.

    Raises:
        ConfigError: with every problem.
    """
    problems: list[str] = []

    def tried(field: str, check: Callable[..., Result], *arguments: object) -> Result | None:
        try:
            return check(*arguments)
        except ConfigError as error:
            problems.extend(error.problems)
        except (ModelError, UnavailableError) as error:
            problems.append(f"{field}: {error}")
        return None

    model = folder or tried("model.path", find_model, config.model.path)
    if model is not None:
        tried("model.path", load_vocabulary, model)
        tried("llm", check_split, config, model)
        tried("scheduler.kv_memory_bytes", check_kv_memory, config, model)
        if config.llm.quantization != "none":
            tried("llm.quantization", _check_quantizable, config, model)
    for index, ssm in enumerate(config.ssms):
        tried(f"ssms.{index}.path", resolve_draft_model, ssm.path)
    if (keys := config.api.api_keys_file) is not None:
        tried("api.api_keys_file", read_keys, Path(keys))
    if config.grpc.tls is not None:
        tried("grpc.tls", config.grpc.tls.check)
    if problems:
        raise ConfigError(problems)
    return model


def _check_quantizable(config: Config, folder: Path) -> None:
    """Raises ModelError."""
    from actors.llm.quantization import check_model  # imported late: it needs torch

    check_model(folder, config.model.dtype, config.llm.tensor_parallel)
