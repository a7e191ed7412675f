from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.statistics import PERCENTILES, Sample, distribution

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def rng():
    return np.random.default_rng(0)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(values):
    found = distribution(Sample.of(values), rng())
    for name, share in PERCENTILES.items():
        percentile = found.percentiles[name]
        if percentile is None:
            continue
        needed = math.ceil(share * len(values) - 1e-9)
        assert percentile.value == sorted(values)[needed - 1]
        assert min(values) <= percentile.low <= percentile.high <= max(values)


@pytest.mark.parametrize(
    ("name", "needed"), [("p50", 2), ("p90", 10), ("p95", 20), ("p99", 100), ("p99_9", 1000)]
)
def test_no_percentile_from_too_few(name, needed):
    def of(count):
        return distribution(Sample.of([float(n) for n in range(count)]), rng()).percentiles[name]

    assert of(needed - 1) is None
    assert of(needed) is not None


def test_a_weight_stands_for_so_many_values():
    values, weights = [[1.0, 5.0], [2.0, 9.0]], [[3, 20], [7, 30]]
    repeated = [[1.0] * 3 + [5.0] * 20, [2.0] * 7 + [9.0] * 30]
    weighted = distribution(Sample.grouped(values, weights), rng())
    plain = distribution(Sample.grouped(repeated), rng())
    assert weighted.count == plain.count == 60
    assert weighted.plain() == plain.plain()
    assert weighted.mean == pytest.approx(plain.mean)


def test_intervals_hold_what_they_say():
    """Of 95 % intervals for a median about 95 in 100 hold it."""
    held = 0
    source = np.random.default_rng(1)
    for _ in range(200):
        found = distribution(Sample.of(list(source.exponential(size=60))), source)
        median = found.percentiles["p50"]
        held += median.low <= math.log(2) <= median.high
    assert 178 <= held <= 199


def test_values_of_one_request_hang_together():
    """Ten requests of a hundred equal values tell as much as ten values, not as a thousand."""
    values = [float(n) for n in range(10)]
    together = distribution(Sample.grouped([[value] * 100 for value in values]), rng())
    apart = distribution(Sample.of(values * 100), rng())

    def width(found):
        return found.percentiles["p50"].high - found.percentiles["p50"].low

    assert width(together) >= 3 * width(apart)


def test_nothing_has_no_percentiles():
    found = distribution(Sample.grouped([[], []]), rng())
    assert found.count == 0 and found.mean is None and set(found.plain().values()) == {None}
