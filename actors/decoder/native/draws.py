"""The shared noise and what is drawn with it, natively; without native code, by numpy and torch.

Both give the same noise, but for a last place where the logarithms of two libraries differ. A
perturbed logit is l + T * G for a row that has noise and l for one that has none.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from actors.decoder.native.build import native_library
from actors.noise import Gumbel, NumpyGumbel, Words

Floating = npt.NDArray[np.floating]
Rows = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS: dict[str, Sequence[type[Any]]] = {
    "gumbel": [_POINTER, _COUNT, ctypes.c_uint64, *[ctypes.c_uint32] * 2, _POINTER],
    "draw_rows": [*[_COUNT] * 2, *[_POINTER] * 4],
    "best_of_rows": [*[_COUNT] * 3, *[_POINTER] * 5],
}


@dataclass(frozen=True)
class Perturbation:
    """What a row of logits is perturbed with.

    Attributes:
        noise: [width].
        temperature: its weight.
    """

    noise: Gumbel
    temperature: float


def gumbel_maker(counters: Words) -> NativeGumbel | NumpyGumbel:
    """The fastest maker of the noise of these counters."""
    return NumpyGumbel(counters) if _library() is None else NativeGumbel(counters)


class NativeGumbel:
    """As `NumpyGumbel`, natively."""

    def __init__(self, counters: Words) -> None:
        self._counters = np.ascontiguousarray(counters, dtype=np.uint32)

    def fill(self, seed: int, position: int, stream: int, out: Gumbel) -> None:
        library = _library()
        if library is None:
            raise RuntimeError("there is no native code")
        key = seed % (1 << 64), position % (1 << 32), stream
        library.gumbel(_address(self._counters), len(self._counters), *key, _address(out))


def draw_rows(
    logits: Sequence[Floating], perturbations: Sequence[Perturbation | None]
) -> list[int]:
    """The place of the largest perturbed logit of each row, the first among equals.

    Args:
        logits: of each row, [width], contiguous; not changed.
    """
    library = _library()
    if library is None or any(row.dtype != np.float32 for row in logits):
        return [
            int(np.argmax(_perturbed(row, one)))
            for row, one in zip(logits, perturbations, strict=True)
        ]
    if not logits:
        return []
    addresses = np.array([_address(row) for row in logits], np.uint64)
    noise, temperatures = _noise_of(perturbations)
    places = np.empty(len(logits), np.int64)
    arrays = addresses, noise, temperatures, places
    library.draw_rows(len(logits), len(logits[0]), *[_address(array) for array in arrays])
    return places.tolist()


def best_of_rows(
    logits: Rows, perturbations: Sequence[Perturbation | None], count: int
) -> tuple[Places, Rows]:
    """The best of each row by perturbed logit, and their probabilities in the softmax of the row.

    Ties go to the smaller index with native code; without it, torch decides.

    Args:
        logits: [rows, width], contiguous; overwritten.
        count: 1 to width.

    Returns:
        [rows, count] places and probabilities, best first.
    """
    library = _library()
    if library is None:
        for row, one in zip(logits, perturbations, strict=True):
            row[:] = _perturbed(row, one)
        best = torch.topk(torch.from_numpy(logits).softmax(-1).nan_to_num_(0.0), count)
        return best.indices.numpy(), best.values.numpy()
    noise, temperatures = _noise_of(perturbations)
    places = np.empty((len(logits), count), np.int64)
    probabilities = np.empty((len(logits), count), np.float32)
    arrays = logits, noise, temperatures, places, probabilities
    library.best_of_rows(*logits.shape, count, *[_address(array) for array in arrays])
    return places, probabilities


def _perturbed(row: Floating, one: Perturbation | None) -> Floating:
    return row if one is None else row + np.float32(one.temperature) * one.noise


def _noise_of(
    perturbations: Sequence[Perturbation | None],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]:
    """The address of each row's noise, 0 for none, and its temperature."""
    addresses = [0 if one is None else _address(one.noise) for one in perturbations]
    temperatures = [0.0 if one is None else one.temperature for one in perturbations]
    return np.array(addresses, np.uint64), np.array(temperatures, np.float32)


def _address(array: npt.NDArray[Any]) -> int:
    return array.ctypes.data


@functools.cache
def _library() -> ctypes.CDLL | None:
    library = native_library()
    if library is not None:
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
    return library
