"""One rank's part of a model, from safetensors files to a stage that runs.

The model is built without weights. Those of the rank's own stage are then read layer by layer, and
each layer is cut to the rank's shard before the next is read, so no rank ever holds the whole
model, nor its whole stage. Weights are found by the names that the model's modules have: files
that name them otherwise are refused.

Covers the models of the fused forward pass.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from actors.decoder.linear import Head
from actors.errors import ModelError
from actors.llm.fused_llama import Foreign, take_layers
from actors.llm.loading import LoadedModel, can_be_fused, max_context, read_config
from actors.llm.parallel.grid import split_layers
from actors.llm.parallel.sharding import Sharding
from actors.llm.parallel.stage_model import StageHead, StageModel
from actors.llm.parallel.world import World
from actors.weight_files import hash_files, weight_files

logger = logging.getLogger(__name__)

LAYERS = "model.layers"
EMBEDDING = "model.embed_tokens"
NORM = "model.norm"
HEAD = "lm_head"


def load_stage(path: Path, dtype: torch.dtype, device: torch.device, world: World) -> LoadedModel:
    """Load this rank's part of the model in a folder; the other ranks load theirs beside it.

    Raises:
        ModelError: the model cannot be served, or not by so many ranks; says why.
    """
    started = time.perf_counter()
    try:
        config = read_config(path)
        if not can_be_fused(config):
            raise ModelError(
                f"{config.model_type} cannot be split over ranks yet (llm.tensor_parallel, "
                "llm.pipeline_parallel)"
            )
        files = weight_files(path)
        loader = _StageLoader(config, WeightReader(files, dtype, device), world)
        model = loader.load(dtype)
    except ModelError as error:
        raise ModelError(f"{path.name} cannot be served: {error}") from error
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    logger.info(
        "%s: %s, loaded in %.1f s, at most %d MiB resident",
        world.grid,
        loader.describe(),
        time.perf_counter() - started,
        peak_bytes >> 20,
    )
    return LoadedModel(
        model,
        dtype,
        device,
        max_context(config),
        loader.num_parameters,
        hash_files(files) if world.grid.answers else "",
        world.least,
    )


class WeightReader:
    """Reads tensors by name from a model's weight files.

    Args:
        files: safetensors.
        dtype, device: of what is read.
    """

    def __init__(self, files: list[Path], dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._dtype = dtype
        self._file_of: dict[str, Path] = {}
        try:
            for file in files:
                with safe_open(file, "pt") as content:
                    self._file_of.update(dict.fromkeys(content.keys(), file))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"its weights cannot be read: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def fill(
        self, module: nn.Module, prefix: str, renamed: Mapping[str, str] | None = None
    ) -> None:
        """Give a module all of its weights; it is called `prefix` in the files.

        Args:
            renamed: names in the files of weights that have others there.

        Raises:
            ModelError: one is missing or has another shape.
        """
        names = {
            name: (renamed or {}).get(f"{prefix}.{name}", f"{prefix}.{name}")
            for name in module.state_dict()
        }
        missing = [name for name in names.values() if name not in self]
        if missing:
            raise ModelError(f"missing keys: {', '.join(missing[:3])}")
        weights = {name: self._read(stored) for name, stored in names.items()}
        try:
            module.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise ModelError(f"mismatched keys: {error}") from error
        module.requires_grad_(False)

    def _read(self, name: str) -> Tensor:
        # Each file is let go of at once: what is mapped counts as resident.
        with safe_open(self._file_of[name], "pt") as content:
            tensor: Tensor = content.get_tensor(name)
            return tensor.to(self.device, self._dtype, copy=True)


class _StageLoader:
    """Loads the part of one rank.

    Args:
        config: of the model.
        reader: of its weights.
        world: the ranks.
    """

    def __init__(self, config: Foreign, reader: WeightReader, world: World) -> None:
        self._config = config
        self._reader = reader
        self._world = world
        with torch.device("meta"):
            self._skeleton: Foreign = AutoModelForCausalLM.from_config(
                config, attn_implementation="eager"
            )
        self._skeleton.eval()
        self._sharding = Sharding(world, self._skeleton)
        self.num_parameters = sum(weight.numel() for weight in self._skeleton.parameters())
        sizes = [_size(layer) for layer in self._skeleton.model.layers]
        self._head_shape: tuple[int, int] = self._skeleton.lm_head.weight.shape
        head_size = _size(self._skeleton.lm_head)
        grid = world.grid
        self._own = split_layers(sizes, head_size, grid.pipeline_parallel)[grid.stage]
        self._num_loaded = 0

    def describe(self) -> str:
        """For a person: what this rank holds."""
        millions = self._num_loaded / 1e6
        return f"layers {self._own.start} to {self._own.stop - 1}, {millions:.1f} M parameters"

    def load(self, dtype: torch.dtype) -> StageModel:
        grid, body = self._world.grid, self._skeleton.model
        # Before the layers: whole, they are the largest pieces.
        embedding = self._embedding() if grid.is_first_stage else None
        head = self._head() if grid.is_last_stage else None
        layers = body.layers
        body.layers = nn.ModuleList()
        for index in self._own:
            self._reader.fill(layers[index], f"{LAYERS}.{index}")
            body.layers.append(self._sharding.layer(layers[index]))
            self._num_loaded += _size(body.layers[-1])
        body.rotary_emb = type(body.rotary_emb)(config=self._config).to(self._reader.device)
        taken, kv_shape = take_layers(self._config, body, self._sharding.product)
        return StageModel(self._world, embedding, taken, head, kv_shape, *self._head_shape, dtype)

    def _embedding(self) -> Foreign:
        embedding = self._skeleton.model.embed_tokens
        self._reader.fill(embedding, EMBEDDING)
        part = self._sharding.embedding(embedding)
        self._num_loaded += _size(part)
        return part

    def _head(self) -> StageHead:
        norm, head = self._skeleton.model.norm, self._skeleton.lm_head
        self._reader.fill(norm, NORM)
        tied = self._config.tie_word_embeddings and f"{HEAD}.weight" not in self._reader
        shared = {f"{HEAD}.weight": f"{EMBEDDING}.weight"} if tied else None
        self._reader.fill(head, HEAD, shared)
        part, widths = self._sharding.head(head)
        self._num_loaded += _size(part) + _size(norm)
        return StageHead(norm.weight.detach(), Head(part.weight, part.bias), widths)


def _size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())
