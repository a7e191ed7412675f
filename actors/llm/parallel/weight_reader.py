"""Reads a model's weights by their names in the model, from safetensors files that may name and cut
them otherwise.

Which tensors of the files a weight is made of, and how, transformers knows: its own renamings and
conversions are applied, one weight at a time (experts that are stored one by one and stacked in the
model, for example). While a weight is converted, it and what it is made of are held together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from actors.errors import ModelError
from actors.llm.fused_llama import Foreign
from actors.llm.offload.pieces import ReadRows


class _Tensor(NamedTuple):
    """A tensor in a file, and the pattern by which its conversion knows it, if there is one."""

    file: Path
    name: str
    pattern: str | None


@dataclass
class _Source:
    """What one weight, or several that are converted together, are made of.

    Attributes:
        target: the first of these weights.
        converter: None if the one tensor is the weight.
    """

    target: str
    converter: WeightConverter | None
    tensors: list[_Tensor] = field(default_factory=list)


class WeightNames:
    """What a model calls the tensors of its files.

    Args:
        model: of transformers, whole; its weights need not be there.
    """

    def __init__(self, model: Foreign) -> None:
        self.model = model
        self._weights = model.state_dict()
        changes = get_model_conversion_mapping(model)
        self._renamings = [each for each in changes if isinstance(each, WeightRenaming)]
        self._converters = [each for each in changes if isinstance(each, WeightConverter)]

    def find(self, stored: str) -> tuple[str, str | None]:
        """The first weight that is made of a tensor; and the pattern of the conversion, if any."""
        prefix = self.model.base_model_prefix
        name: str
        pattern: str | None
        name, pattern = rename_source_key(
            stored, self._renamings, self._converters, prefix, self._weights
        )
        if name not in self._weights and stored in self._weights:  # a name that needs no change
            name, pattern = rename_source_key(stored, [], [], prefix, self._weights)
        return name, pattern

    def converter(self, pattern: str) -> WeightConverter:
        """The conversion that has such a pattern."""
        return next(each for each in self._converters if pattern in each.source_patterns)


class WeightReader:
    """Reads weights by name.

    Args:
        files: safetensors.
        dtype, device: of what is read.
        names: of the model.

    Raises:
        ModelError: the files cannot be read.
    """

    def __init__(
        self, files: list[Path], dtype: torch.dtype, device: torch.device, names: WeightNames
    ) -> None:
        self.device = device
        self._dtype = dtype
        self._model = names.model
        self._sources: dict[str, _Source] = {}
        stored: dict[str, Path] = {}
        try:
            for file in files:
                with safe_open(file, "pt") as content:
                    stored.update(dict.fromkeys(content.keys(), file))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"its weights cannot be read: {error}") from error
        # In transformers' order, in which experts are stacked.
        for name in sorted(stored, key=dot_natural_key):
            target, pattern = names.find(name)
            converter = None if pattern is None else names.converter(pattern)
            self._add(target, converter, _Tensor(stored[name], name, pattern))

    def _add(self, target: str, converter: WeightConverter | None, tensor: _Tensor) -> None:
        source = self._sources.get(target)
        if source is None or source.converter is None or converter is None:
            source = _Source(target, converter)
            self._sources |= dict.fromkeys(_made_together(target, converter), source)
        source.tensors.append(tensor)

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def fill(self, module: nn.Module, names: Mapping[str, str]) -> None:
        """Give a module weights.

        Args:
            names: what they are called in the model, by their names in the module.

        Raises:
            ModelError: one is missing, has another shape, or cannot be converted.
        """
        missing = [name for name in names.values() if name not in self]
        if missing:
            raise ModelError(f"missing keys: {', '.join(missing[:3])}")
        read: dict[str, Tensor] = {}
        for name in names.values():
            if name not in read:
                read |= self._read(self._sources[name])
        # What its conversion did not bring after all is told as missing.
        weights = {own: read.pop(name) for own, name in names.items() if name in read}
        if absent := [name for own, name in names.items() if own not in weights]:
            raise ModelError(f"missing keys: {', '.join(absent[:3])}")
        try:
            module.load_state_dict(weights, strict=False, assign=True)
        except RuntimeError as error:
            raise ModelError(f"mismatched keys: {error}") from error
        module.requires_grad_(False)

    def rows_of(self, name: str) -> ReadRows:
        """Reads rows of a matrix that stays in its file.

        Raises:
            ModelError: it is missing, or not in a file as it is in the model.
        """
        if name not in self:
            raise ModelError(f"missing keys: {name}")
        source = self._sources[name]
        if source.converter is not None:
            raise ModelError(f"{name} would have to be converted, and cannot be read row by row")
        (tensor,) = source.tensors
        matrix: Foreign = safe_open(tensor.file, "pt").get_slice(tensor.name)  # type: ignore[no-untyped-call]

        def read_rows(rows: Sequence[int]) -> Tensor:
            found: Tensor = matrix[list(rows)]
            return found.to(self.device, self._dtype)

        return read_rows

    def _read(self, source: _Source) -> dict[str, Tensor]:
        """The weights that are made of some tensors."""
        if source.converter is None:
            (tensor,) = source.tensors
            return {source.target: self._tensor(tensor)}
        converter = deepcopy(source.converter)  # it keeps what it is given
        for tensor in source.tensors:
            converter.add_tensor(
                source.target,
                tensor.name,
                tensor.pattern,
                lambda tensor=tensor: self._tensor(tensor),
            )
        try:
            made = converter.convert(source.target, model=self._model, config=self._model.config)
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
            first = source.tensors[0].name
            raise ModelError(
                f"{source.target} cannot be converted from {first} and its like: {error}"
            ) from error
        return {name: each[0] if isinstance(each, list) else each for name, each in made.items()}

    def _tensor(self, tensor: _Tensor) -> Tensor:
        # Each file is let go of at once: what is mapped counts as resident.
        with safe_open(tensor.file, "pt") as content:
            found: Tensor = content.get_tensor(tensor.name)
            return found.to(self.device, self._dtype, copy=True)


def _made_together(target: str, converter: WeightConverter | None) -> list[str]:
    """The weights that a conversion makes, by the first of them."""
    if converter is None:
        return [target]
    first, *_ = patterns = converter.target_patterns
    return [target.replace(first, pattern) for pattern in patterns]
