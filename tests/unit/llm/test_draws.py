"""The native draws and the native noise against numpy and float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.decoder.native.draws import NativeGumbel, Perturbation, best_of_rows, draw_rows
from actors.noise import NoiseSource, NumpyGumbel


def perturbations(width: int, rows: int) -> list[Perturbation | None]:
    """For every second row."""
    noise = NoiseSource(width)
    return [Perturbation(noise.get(3, row), 0.1 * row) if row % 2 else None for row in range(rows)]


@pytest.mark.parametrize("width", [7, 16, 250])
def test_the_best_of_each_row(width):
    torch.manual_seed(width)
    logits = torch.randn(9, width) * 4
    logits[0, 3:] = -torch.inf
    logits[4] = -torch.inf
    logits[2] = 1.5
    perturbed = logits.double()
    noises = perturbations(width, 9)
    for row, one in zip(perturbed, noises, strict=True):
        if one is not None:
            row += one.temperature * torch.tensor(one.noise)
    places, probabilities = map(torch.from_numpy, best_of_rows(logits.numpy(), noises, 5))
    exact = perturbed.softmax(-1).nan_to_num(0.0)
    order = torch.argsort(perturbed, dim=-1, descending=True, stable=True)[:, :5]
    whole = [0, 1, 2, 3, *range(5, 9)]
    real = exact.gather(1, order)[whole] > 0
    assert torch.equal(places[whole][real], order[whole][real])
    torch.testing.assert_close(probabilities.double(), exact.gather(1, order), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [1, 7, 16, 33, 250])
def test_a_draw_is_the_first_of_the_largest(width):
    torch.manual_seed(width)
    logits = (torch.randn(9, width) * 2).round().numpy()  # many equal ones
    logits[4] = -np.inf
    noises = perturbations(width, 9)
    for row, place, one in zip(logits, draw_rows(list(logits), noises), noises, strict=True):
        whole = row if one is None else row + np.float32(one.temperature) * one.noise
        # What is multiplied and added in one go is rounded once.
        assert whole[place] == pytest.approx(whole.max(), rel=1e-6)
        if one is None:
            assert place == np.argmax(row)
    assert draw_rows([], []) == []


@pytest.mark.parametrize(("seed", "position", "stream"), [(0, 0, 0), (-5, 7, 2), (1 << 63, 9, 4)])
def test_native_noise_is_the_noise(seed, position, stream):
    counters = np.array([0, 3, 4, *range(100, 300), (1 << 32) - 1], dtype=np.uint32)
    ours, expected = np.empty((2, len(counters), 4), np.float32)
    NativeGumbel(counters).fill(seed, position, stream, ours)
    NumpyGumbel(counters).fill(seed, position, stream, expected)
    np.testing.assert_array_max_ulp(ours, expected, maxulp=1)
    assert (ours != expected).mean() < 1e-3
