"""Where training of one draft model stands, in a safetensors file that is replaced in one go.

It holds the weights, the optimizer's state and the progress, and nothing of the replicas that were
trained side by side: any number of them goes on from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from actors.errors import InputError
from actors.ssm.boost_tuning.recipe import Progress, Recipe
from actors.ssm.model import DraftModel, LLMMatrices

_MODEL, _OPTIMIZER = "model.", "optimizer."


class Checkpoint:
    """One file, of one recipe; there may be none yet.

    Args:
        recipe: a file of another one is refused.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self._path = path
        self._recipe = recipe

    @property
    def progress(self) -> Progress:
        """Where training stands; at its start if there is no file. Raises InputError."""
        return self._read()[1] if self._path.is_file() else Progress()

    def model(self, llm: LLMMatrices) -> DraftModel:
        """The model as it was saved. Raises InputError if there is none."""
        tensors, _ = self._read()
        model = DraftModel(self._recipe.shape, tensors[f"{_MODEL}cut_ids"], llm)
        model.load_state_dict(_below(_MODEL, tensors))
        return model.eval()

    def save(self, model: DraftModel, optimizer: torch.optim.Optimizer, to: Progress) -> None:
        """Replace the file."""
        tensors = {f"{_MODEL}{name}": value for name, value in model.state_dict().items()}
        for name, parameter in model.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{_OPTIMIZER}{name}.{key}"] = value.contiguous()
        note = {"recipe": _as_text(self._recipe), "progress": json.dumps(asdict(to))}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_name(f".{self._path.name}.tmp")
        save_file(tensors, scratch, metadata=note)
        scratch.rename(self._path)

    def restore(self, model: DraftModel, optimizer: torch.optim.Optimizer) -> Progress:
        """Set the model and the optimizer as they were; leaves them alone if there is no file.

        Raises:
            InputError: the file cannot be read, or is of another recipe or other records.
        """
        if not self._path.is_file():
            return Progress()
        tensors, progress = self._read()
        weights = _below(_MODEL, tensors)
        if not torch.equal(weights["cut_ids"], model.cut_ids.cpu()):
            raise InputError(f"{self._path}: was made from other records")
        model.load_state_dict(weights)
        for name, parameter in model.named_parameters():
            state = _below(f"{_OPTIMIZER}{name}.", tensors)
            optimizer.state[parameter] = dict(_beside(parameter, state))
        return progress

    def _read(self) -> tuple[dict[str, Tensor], Progress]:
        try:
            with safe_open(self._path, framework="pt") as content:
                note = content.metadata()
                tensors = {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"{self._path}: cannot be read: {error}") from error
        if note.get("recipe") != _as_text(self._recipe):
            raise InputError(f"{self._path}: was made by another recipe; remove it first")
        return tensors, Progress(**json.loads(note["progress"]))


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
    }


def _beside(parameter: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """State on the parameter's device; counts of steps stay where they are."""
    for key, value in state.items():
        yield key, value.to(parameter.device) if value.dim() else value


def _as_text(recipe: Recipe) -> str:
    return json.dumps(asdict(recipe), sort_keys=True)
