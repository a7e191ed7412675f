"""Weights that are streamed in every pass: DeepSpeed's ZeRO-3 parameter offload, as ZeRO-Inference
uses it (an engine without an optimizer).

Every piece of the model (a layer, a slice of the head) is handed over as soon as it is filled: ZeRO
puts its weights into host memory, pinned where there are GPUs, or into files, and from then on
fetches them before the piece runs and lets go of them behind it. While one piece runs the next is
on its way. Vectors (norms, biases) stay where they are used.

Every rank is a ZeRO world of its own. Of files, ZeRO by itself reads one matrix ahead; here a
whole piece is read ahead, and behind the last one of a pass the first one of the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from actors.llm.fused_llama import Foreign
from actors.llm.offload.heap import free_large_at_once, keep_large_at_hand

VECTOR = 8
"""A weight with at most so many times the model's width is a vector: matrices have far more."""

PIECES_AT_HAND = 2
"""The one that runs, and the one that is on its way."""


@dataclass(frozen=True)
class PieceSizes:
    """Of the pieces that are streamed; numbers of elements.

    Attributes:
        width: of the model.
        largest_matrix: of all layers.
        largest_layer: all its matrices.
        most_matrices: of one layer.
        total: of all that is streamed.
    """

    width: int
    largest_matrix: int
    largest_layer: int
    most_matrices: int
    total: int

    @classmethod
    def of(cls, layers: Iterable[nn.Module], heads: Iterable[nn.Module], width: int) -> PieceSizes:
        """Of pieces whose weights need not be there."""
        matrices = [
            [weight.numel() for weight in layer.parameters() if weight.numel() > VECTOR * width]
            for layer in layers
        ]
        return cls(
            width,
            max(max(sizes) for sizes in matrices),
            max(map(sum, matrices)),
            max(map(len, matrices)),
            sum(map(sum, matrices)) + sum(w.numel() for head in heads for w in head.parameters()),
        )

    @property
    def max_words(self) -> int:
        """Of a slice of the head, so that it is no larger than a matrix of a layer."""
        return max(1, self.largest_matrix // self.width)


OpenStream = Callable[[PieceSizes], "Streaming"]
"""Makes ready to stream pieces of such sizes. Raises ConfigError if it cannot be done here."""


def zero_settings(
    sizes: PieceSizes, dtype: torch.dtype, device: torch.device, swap_folder: Path | None
) -> dict[str, Any]:
    """DeepSpeed's configuration.

    Args:
        dtype: of the weights.
        device: where they are used.
        swap_folder: where their files go; None keeps them in memory.
    """
    pinned = device.type == "cuda"
    where: dict[str, Any] = {"device": "cpu", "pin_memory": pinned}
    if swap_folder is not None:
        where = {
            "device": "nvme",
            "pin_memory": pinned,
            "nvme_path": str(swap_folder),
            "buffer_size": sizes.largest_matrix,
            "buffer_count": PIECES_AT_HAND * sizes.most_matrices + 1,
        }
    return {
        "train_micro_batch_size_per_gpu": 1,  # it wants one
        "bf16": {"enabled": dtype == torch.bfloat16},
        "zero_optimization": {
            "stage": 3,
            "memory_efficient_linear": False,  # would put another product in place of torch's
            "offload_param": where,
            "stage3_prefetch_bucket_size": sizes.largest_layer,
            "stage3_max_live_parameters": PIECES_AT_HAND * sizes.largest_layer,
            "stage3_max_reuse_distance": 0,
            "stage3_param_persistence_threshold": VECTOR * sizes.width,
        },
    }


class Streaming:
    """Takes over the weights of a model piece by piece, and streams them.

    Args:
        sizes: of the pieces.
        dtype, device: of the model.
        swap_folder: where weights go as files; None keeps them in memory.
        group: of this rank alone.

    Attributes:
        sizes: of the pieces.
    """

    def __init__(
        self,
        sizes: PieceSizes,
        dtype: torch.dtype,
        device: torch.device,
        swap_folder: Path | None,
        group: Foreign,
    ) -> None:
        free_large_at_once()
        os.environ.setdefault("LOCAL_RANK", "0")  # a rank sees no GPU but its own
        self.sizes = sizes
        self._settings = zero_settings(sizes, dtype, device, swap_folder)
        self._group = group
        self._known: Foreign = None  # a weight that was taken over
        self._streamed_bytes = 0

    def take(self, piece: nn.Module) -> None:
        """Take over the weights of a piece, which are there."""
        import deepspeed
        from deepspeed.utils import set_z3_leaf_module

        if self._known is not None:
            self._known.convert_to_zero_parameters(param_list=list(piece.parameters()))
        else:
            deepspeed.zero.Init(
                module=piece,
                data_parallel_group=self._group,
                config_dict_or_path=self._settings,  # its own argument for the type is ignored
            )
            self._known = next(piece.parameters())
        set_z3_leaf_module(piece, True)  # fetched as a whole

    def start(self, model: nn.Module, pieces: Sequence[nn.Module]) -> None:
        """Make a model ready to run.

        Args:
            model: has the pieces; whatever else it has is taken over too.
            pieces: those that were taken over, in the order in which they run.
        """
        import deepspeed
        from deepspeed.runtime.zero import partitioned_param_coordinator

        # It would have all ranks that there are run the same modules, whatever their groups.
        partitioned_param_coordinator.assert_ints_same_as_other_ranks = _agree
        deepspeed.initialize(model=model, config=self._settings)
        weights: list[Foreign] = list(model.parameters())
        for weight in weights:
            weight.all_gather_coalesced = self._counted(weight.all_gather_coalesced)
        for piece, next_piece in zip(pieces, [*pieces[1:], pieces[0]], strict=True):
            # Behind ZeRO's own hook: what the piece needs is there by then.
            piece.register_forward_pre_hook(_reads_ahead(next_piece))
        keep_large_at_hand()

    def take_streamed_bytes(self) -> int:
        """Bytes of weights fetched since the last call."""
        streamed, self._streamed_bytes = self._streamed_bytes, 0
        return streamed

    def _counted(self, gather: Callable[..., Foreign]) -> Callable[..., Foreign]:
        def gather_and_count(weights: Sequence[Foreign], *more: object, **named: object) -> Foreign:
            self._streamed_bytes += sum(
                weight.ds_tensor.ds_numel * weight.element_size()
                for weight in weights
                if not weight.ds_persist
            )
            return gather(weights, *more, **named)

        return gather_and_count


def _agree(_: Sequence[int]) -> None:
    """A rank alone is of one mind."""


def _reads_ahead(piece: nn.Module) -> Callable[..., None]:
    """A hook that begins to read what a piece has in files."""
    from deepspeed.runtime.swap_tensor.partitioned_param_swapper import PartitionedParamStatus

    weights: list[Foreign] = list(piece.parameters())
    stored = [weight for weight in weights if weight.ds_tensor.final_location == "nvme"]

    def read_ahead(*_: object) -> None:
        absent = [
            weight
            for weight in stored
            if weight.ds_tensor.status == PartitionedParamStatus.NOT_AVAILABLE
        ]
        if absent:
            absent[0].nvme_swapper.swap_in(absent, async_op=True)

    return read_ahead
