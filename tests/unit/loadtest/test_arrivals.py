from __future__ import annotations

import numpy as np
import pytest

from loadtest.arrivals import PROCESSES, ArrivalSpec, schedule
from loadtest.errors import UsageError


def times(process="poisson", rate=10.0, seed=0, **limits):
    limits = limits or {"num_requests": 5000}
    return schedule(ArrivalSpec(process, rate, **limits), np.random.default_rng(seed))


@pytest.mark.parametrize("process", PROCESSES)
def test_a_seed_gives_one_schedule(process):
    limits = {"duration_s": 50.0}
    assert times(process, **limits) == times(process, **limits)
    if process != "constant":
        assert times(process, **limits) != times(process, seed=1, **limits)


@pytest.mark.parametrize("process", PROCESSES)
def test_times_ascend_and_end_with_the_duration(process):
    found = times(process, duration_s=100.0)
    assert found == sorted(found)
    assert found[0] >= 0 and found[-1] < 100.0


@pytest.mark.parametrize(
    ("process", "burstiness", "variation"),
    [("poisson", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 4.0, 0.5), ("constant", 1.0, 0.0)],
)
def test_gaps_have_the_mean_and_the_variation_that_they_should(process, burstiness, variation):
    gaps = np.diff(times(process, burstiness=burstiness, num_requests=20000))
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.06)


def test_a_ramp_rises_to_its_rate():
    found = np.array(times("ramp", 100.0, start_rate=0.0, duration_s=100.0))
    assert len(found) == pytest.approx(5000, rel=0.05)
    # Half of the ramp's time holds a quarter of its requests.
    assert (found < 50).sum() / len(found) == pytest.approx(0.25, abs=0.02)


def test_a_ramp_may_fall():
    found = np.array(times("ramp", 0.5, start_rate=100.0, duration_s=100.0))
    assert (found < 50).sum() / len(found) == pytest.approx(0.75, abs=0.02)


def test_both_limits_hold():
    assert len(times("constant", num_requests=7, duration_s=100.0)) == 7
    assert len(times("constant", num_requests=7000, duration_s=2.0)) == 20


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (ArrivalSpec("poisson", 0.0, num_requests=1), "--rate"),
        (ArrivalSpec("poisson", float("nan"), num_requests=1), "--rate"),
        (ArrivalSpec("gamma", 1.0, burstiness=0.0, num_requests=1), "--burstiness"),
        (ArrivalSpec("poisson", 1.0), "--duration-s or --requests"),
        (ArrivalSpec("poisson", 1e9, duration_s=60.0), "at most"),
        (ArrivalSpec("ramp", 1.0, start_rate=1e9, duration_s=60.0), "at most"),
        (ArrivalSpec("ramp", 1.0, num_requests=3), "--duration-s"),
        (ArrivalSpec("steps", 1.0, num_requests=3), "steps"),
    ],
)
def test_wrong_use_is_named(spec, said):
    with pytest.raises(UsageError, match=said):
        schedule(spec, np.random.default_rng(0))
