"""The shared noise: its bits, its distribution down to the rarest tokens, and its memory.

`noise_vectors.json` holds the known-answer vectors of the Random123 library for Philox-4x32-10,
and Gumbel values that were computed from the definition with 50 decimal digits.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from actors.noise import (
    NoiseSource,
    Stream,
    draft_stream,
    gumbel_from_bits,
    philox_4x32_10,
    uniforms,
)

VECTORS = json.loads((Path(__file__).parent / "noise_vectors.json").read_text())
GumbelOfBits = Callable[[np.ndarray], np.ndarray]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def gumbel_32_bits(bits: np.ndarray) -> np.ndarray:
    out = np.empty(bits.shape, dtype=np.float32)
    gumbel_from_bits(bits.astype(np.uint64), out)
    return out


def gumbel_24_bits(bits: np.ndarray) -> np.ndarray:
    """What a generator of float32 uniforms, which carry 24 bits, would make of the same bits."""
    uniform = ((bits >> 8).astype(np.float64) + 0.5) * 2.0**-24
    return (-np.log(-np.log1p(-uniform))).astype(np.float32)


@pytest.mark.parametrize("vector", VECTORS["philox_4x32_10"])
def test_philox_gives_the_known_answers(vector):
    counters = np.array(words(vector["counter"]), dtype=np.uint64)[:, np.newaxis].repeat(3, axis=1)
    low, high = words(vector["key"])
    philox_4x32_10(counters, high << 32 | low)
    assert [[f"{word:08x}" for word in lane] for lane in counters.T.tolist()] == 3 * [
        vector["result"].split()
    ]


@pytest.mark.parametrize("vector", VECTORS["gumbel"])
def test_gumbel_values_follow_from_the_definition(vector):
    token = vector["token"]
    noise = NoiseSource(token + 1).get(vector["seed"], vector["position"], vector["stream"])
    assert noise.shape == (token + 1,)
    assert noise.dtype == np.float32
    np.testing.assert_array_max_ulp(noise[token], np.float32(vector["gumbel"]), maxulp=1)
    bits = np.array([int(vector["bits"], 16)], dtype=np.uint64)
    assert gumbel_32_bits(bits)[0] == noise[token]


@given(
    seed=st.integers(-(1 << 70), 1 << 70),
    position=st.integers(0, (1 << 32) - 1),
    stream=st.sampled_from(Stream),
)
def test_the_shortened_first_rounds_are_those_of_philox(seed, position, stream):
    counters = np.zeros((4, 6), dtype=np.uint64)
    counters[0], counters[1], counters[2] = np.arange(6), position, stream
    philox_4x32_10(counters, seed % (1 << 64))
    expected = gumbel_32_bits(counters.T.reshape(-1))[:23]
    np.testing.assert_array_equal(NoiseSource(23).get(seed, position, stream), expected)


def test_a_token_has_its_noise_whatever_the_size_of_the_vocabulary():
    large = NoiseSource(1003).get(9, 4)
    for vocab_size in (1, 2, 3, 4, 5, 1000):
        np.testing.assert_array_equal(NoiseSource(vocab_size).get(9, 4), large[:vocab_size])


@pytest.mark.parametrize("token_ids", [[0], [5], [1, 2, 7, 40, 41], list(range(0, 90, 3))])
def test_some_tokens_have_the_noise_that_they_have_among_all(token_ids):
    whole, some = NoiseSource(100), NoiseSource(100, np.array(token_ids))
    for position in (0, 1, 0):
        np.testing.assert_array_equal(some.get(9, position), whole.get(9, position)[token_ids])


def test_every_bit_pattern_gives_a_finite_value_and_order_is_kept():
    bits = np.array([0, 1, 2, 1 << 31, (1 << 32) - 2, (1 << 32) - 1], dtype=np.uint64)
    values = gumbel_32_bits(bits)
    assert np.isfinite(values).all()
    assert (np.diff(values) < 0).all()


def probability_drawn(probability: float, gumbel: GumbelOfBits) -> float:
    """How often a token of this probability wins the draw against one with all the rest.

    Exact over the 2^32 × 2^32 grid of both tokens' random bits, but for the 2^32 - 2^16 values of
    the rare token's bits whose noise is too small to matter: for each of the others, the values of
    the common token's bits that lose to it are counted by bisection (noise falls as bits rise).
    """
    score, rest_score = np.log(np.float32([probability, 1.0 - probability]))
    total = score + gumbel(np.arange(1 << 16, dtype=np.uint64))
    low = np.zeros(len(total), dtype=np.uint64)  # bits below this one win against the rare token
    high = np.full(len(total), 1 << 32, dtype=np.uint64)
    while (low < high).any():
        middle = (low + high) // 2
        wins = rest_score + gumbel(np.minimum(middle, (1 << 32) - 1)) >= total
        active = low < high
        low = np.where(active & wins, middle + 1, low)
        high = np.where(active & ~wins, middle, high)
    losing = (1 << 32) - low.astype(np.float64)
    return float(losing.sum()) / float(1 << 64)


@pytest.mark.parametrize("probability", [1e-6, 1e-7, 1e-8])
def test_rare_tokens_are_drawn_as_often_as_due(probability):
    assert probability_drawn(probability, gumbel_32_bits) == pytest.approx(probability, rel=2e-3)


def test_a_24_bit_uniform_would_fail_the_same_test():
    assert probability_drawn(1e-8, gumbel_24_bits) != pytest.approx(1e-8, rel=0.5)
    assert probability_drawn(1e-9, gumbel_24_bits) < 1e-20


def test_values_are_standard_gumbel_and_independent_across_tokens_positions_seeds_streams():
    source = NoiseSource(40_000)
    first = source.get(1, 0)
    assert stats.kstest(first, "gumbel_r").pvalue > 1e-3
    others = [source.get(1, 1), source.get(2, 0), source.get(1, 0, Stream.DRAFT), np.roll(first, 1)]
    for other in others:
        assert abs(stats.spearmanr(first, other).statistic) < 4 / np.sqrt(len(first))


def test_uniform_variates_are_uniform_and_those_of_the_cipher():
    flips = np.array([uniforms(seed, 7, Stream.COIN, 6) for seed in range(2000)])
    assert flips.shape == (2000, 6)
    assert stats.kstest(flips.ravel(), "uniform").pvalue > 1e-3
    assert np.abs(np.corrcoef(flips.T) - np.eye(6)).max() < 0.1
    assert uniforms(5, 7, Stream.COIN, 2).tolist() == uniforms(5, 7, Stream.COIN, 6)[:2].tolist()
    counters = np.array([[1], [7], [Stream.COIN], [0]], dtype=np.uint64)
    philox_4x32_10(counters, 5)
    assert uniforms(5, 7, Stream.COIN, 6)[5] == (counters[1, 0] + 0.5) / 2**32
    assert uniforms(5, 7, Stream.COIN, 0).shape == (0,)


def test_noise_is_remembered_for_as_many_positions_as_agreed():
    source = NoiseSource(10, capacity=2)
    for position in (0, 1, 0, 2, 0, 1):  # 0 is used most lately each time: 1 makes room for 2
        source.get(5, position)
    assert (source.hits, source.misses) == (2, 4)


def test_noise_is_read_only_and_outlives_its_place_in_memory():
    source = NoiseSource(64, capacity=1)
    held = source.get(5, 0)
    part = source.get(5, 1)[10:20]
    expected = held.copy(), part.copy()
    for position in range(2, 6):
        source.get(5, position)
    np.testing.assert_array_equal(held, expected[0])
    np.testing.assert_array_equal(part, expected[1])
    with pytest.raises(ValueError, match="read-only"):
        held[0] = 0.0


def test_memory_that_nobody_looks_at_is_used_again():
    source = NoiseSource(100_000, capacity=2)
    source.get(5, 0)
    source.get(5, 1)
    tracemalloc.start()
    try:
        source.get(5, 2)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_every_draft_model_has_a_noise_of_its_own() -> None:
    streams = [draft_stream(model) for model in range(16)]
    assert streams[0] == Stream.DRAFT
    assert len({*streams, *Stream}) == len(streams) + len(Stream) - 1
    source = NoiseSource(1000)
    first, second = (source.get(1, 0, stream) for stream in streams[:2])
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
