"""One rank's part of a model, from safetensors files to a stage that runs.

The model is built without weights. Those of the rank's own stage are then read layer by layer, and
each layer is cut to the rank's shard before the next is read, so no rank ever holds the whole
model, nor its whole stage. Where weights are streamed, each layer is handed over instead of being
cut.
"""

from __future__ import annotations

import ctypes
import gc
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from actors.errors import ModelError
from actors.llm.fused_llama import Foreign, as_they_are
from actors.llm.load_report import begin_report
from actors.llm.loading import LoadedModel, can_be_fused, max_context, read_config
from actors.llm.offload.pieces import SlicedHead, StoredEmbedding
from actors.llm.offload.streaming import OpenStream, PieceSizes, Streaming
from actors.llm.parallel.grid import split_layers
from actors.llm.parallel.parts import FusedPart, Part, StockPart
from actors.llm.parallel.sharding import Sharding
from actors.llm.parallel.skeleton import Placeholder, Skeleton
from actors.llm.parallel.stage_model import StageModel
from actors.llm.parallel.weight_reader import WeightNames, WeightReader
from actors.llm.parallel.world import World
from actors.llm.peers import Alone
from actors.llm.quantization import Int8, check_quantizable
from actors.weight_files import hash_files, weight_files


def load_stage(
    path: Path,
    dtype: torch.dtype,
    device: torch.device,
    world: World,
    stream: OpenStream | None = None,
    int8: Int8 | None = None,
) -> LoadedModel:
    """Load this rank's part of the model in a folder; the other ranks load theirs beside it.

    Args:
        stream: gives what streams the weights, if they are not to stay on the device.
        int8: quantises the weights of each layer as soon as they are read and cut; None leaves them
            as they are. Not together with `stream`.

    Raises:
        ModelError: the model cannot be served, or not by so many ranks; says why.
    """
    end_report = begin_report()
    try:
        config = read_config(path)
        context = max_context(config)
        files = weight_files(path)
        skeleton = Skeleton(config, dtype)
        if int8 is not None:
            check_quantizable(skeleton, dtype, world.grid.tensor_parallel)
        reader = WeightReader(files, dtype, device, WeightNames(skeleton.model))
        loader = _StageLoader(skeleton, reader, world, stream, int8)
        model = loader.load(dtype)
    except ModelError as error:
        raise ModelError(f"{path.name} cannot be served: {error}") from error
    loaded = LoadedModel(
        model,
        dtype,
        device,
        context,
        skeleton.num_parameters,
        hash_files(files) if world.grid.answers else "",
        world if world.grid.num_ranks > 1 else Alone(),
        end_report(loader.num_held, loader.held_bytes),
        quantization="none" if int8 is None else "int8",
    )
    if loader.streaming is None:
        return loaded
    return replace(loaded, take_streamed_bytes=loader.streaming.take_streamed_bytes)


class _StageLoader:
    """Loads the part of one rank.

    Args:
        skeleton: of the model.
        reader: of its weights.
        world: the ranks.
        stream: gives what streams the weights; None leaves them on the device.
        int8: quantises them; None leaves them as they are.

    Attributes:
        streaming: what streams the weights, if anything does.
        num_held: parameters of this rank's part, as far as it is loaded.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        reader: WeightReader,
        world: World,
        stream: OpenStream | None,
        int8: Int8 | None,
    ) -> None:
        self._skeleton = skeleton
        self._reader = reader
        self._world = world
        self._grid = world.grid
        self._sharding = Sharding(world, skeleton.model)
        self._stream = stream
        self._int8 = int8
        self.streaming: Streaming | None = None
        self.num_held = 0
        self._read_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What this rank's part takes, as far as it is loaded."""
        return self._read_bytes - (0 if self._int8 is None else self._int8.saved_bytes)

    def load(self, dtype: torch.dtype) -> StageModel:
        skeleton, grid = self._skeleton, self._grid
        head_size = _size(skeleton.head)
        vocab_size = skeleton.head.weight.shape[0]
        costs = [_size(layer) for layer in skeleton.layers]
        own = split_layers(costs, head_size, grid.pipeline_parallel)[grid.stage]
        if self._stream is not None:
            layers = [skeleton.layers[index] for index in own]
            head = [skeleton.head] if grid.is_last_stage else []
            self.streaming = self._stream(PieceSizes.of(layers, head, skeleton.width))
        skeleton.make_buffers(self._reader.device)
        small = {name: name for name in skeleton.small_names}
        self._reader.fill(skeleton.model, small)
        # Before the layers: whole, they are the largest pieces.
        self._embedding()
        widths = self._head() if grid.is_last_stage else []
        return StageModel(self._world, self._part(own), vocab_size, widths, skeleton.width, dtype)

    def _part(self, own: range) -> Part:
        skeleton, first = self._skeleton, own.start
        if self.streaming is not None or not can_be_fused(skeleton.model.config):
            skeleton.keep([self._stock_layer(index) for index in own], own)
            if self._int8 is not None and self._grid.is_last_stage:
                skeleton.head = self._int8.linear_layer(skeleton.head)
            if self.streaming is not None:
                self._start(self.streaming)
            return StockPart(skeleton, self._grid)
        prepare = self._int8 or as_they_are
        part = FusedPart(skeleton, self._layer(first), len(own), self._world, prepare)
        for index in own[1:]:
            part.add_layer(self._layer(index))
        return part

    def _start(self, streaming: Streaming) -> None:
        skeleton, pieces = self._skeleton, list(self._skeleton.layers)
        if not self._grid.is_last_stage:
            streaming.start(skeleton.body, pieces)
            return
        streaming.start(skeleton.model, [*pieces, *skeleton.head.slices])

    def _layer(self, index: int) -> Foreign:
        """This rank's part of a layer."""
        # Filled in its place: conversions look up there what they are to make.
        self._fill(self._skeleton.layers[index], f"{self._skeleton.layers_name}.{index}")
        layer = self._sharding.layer(self._skeleton.take_layer(index))
        self._count(layer)
        if self.streaming is not None:
            self.streaming.take(layer)
        return layer

    def _stock_layer(self, index: int) -> Foreign:
        """The same, with its linear layers quantised if they are to be."""
        layer = self._layer(index)
        if self._int8 is not None:
            self._int8.linear_layers_of(layer)
        return layer

    def _embedding(self) -> None:
        skeleton = self._skeleton
        if not self._grid.is_first_stage:
            skeleton.embedding = Placeholder(skeleton.embedding.weight)
            return
        if self.streaming is not None:
            rows = self._reader.rows_of(f"{skeleton.embedding_name}.weight")
            skeleton.embedding = StoredEmbedding(skeleton.embedding, rows)
            return
        self._fill(skeleton.embedding, skeleton.embedding_name)
        skeleton.embedding = self._sharding.embedding(skeleton.embedding)
        self._count(skeleton.embedding)

    def _head(self) -> list[int]:
        """Returns how many words each shard has."""
        skeleton = self._skeleton
        own_name = f"{skeleton.head_name}.weight"
        is_shared = skeleton.is_tied and own_name not in self._reader
        if is_shared:
            self._reader.fill(skeleton.head, {"weight": f"{skeleton.embedding_name}.weight"})
        else:
            self._fill(skeleton.head, skeleton.head_name)
        skeleton.head, widths = self._sharding.head(skeleton.head)
        self._count(skeleton.head)
        if self.streaming is not None:
            skeleton.head = SlicedHead(skeleton.head, self.streaming.sizes.max_words)
            for part in skeleton.head.slices:
                self.streaming.take(part)
        return widths

    def _count(self, module: nn.Module) -> None:
        self.num_held += _size(module)
        self._read_bytes += sum(weight.nbytes for weight in module.parameters())

    def _fill(self, module: nn.Module, prefix: str) -> None:
        if self._grid.tensor_parallel > 1 or self._stream is not None:
            gc.collect()  # DeepSpeed leaves cycles behind that hold the layer before
        _give_back()
        self._reader.fill(module, {name: f"{prefix}.{name}" for name in module.state_dict()})


def _give_back() -> None:
    """Return to Linux what the piece before took on top of what is kept of it."""
    # The C library keeps what is freed between two pieces that stay; glibc can be told otherwise.
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())
