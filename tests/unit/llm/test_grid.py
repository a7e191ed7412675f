"""Who holds what of a split model."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import ModelError
from actors.llm.parallel.grid import Grid, split_layers


def test_ranks_are_numbered_stage_by_stage():
    grids = [Grid(3, 2, rank) for rank in range(6)]
    assert [(grid.stage, grid.shard) for grid in grids] == [*itertools.product(range(2), range(3))]
    assert grids[0].stages == [[0, 1, 2], [3, 4, 5]]
    assert [grid.next for grid in grids[:3]] == [3, 4, 5]
    assert [grid.previous for grid in grids[3:]] == [0, 1, 2]


def test_one_rank_answers_and_it_is_the_last():
    for shards, stages in itertools.product((1, 2, 3), repeat=2):
        grids = [Grid(shards, stages, rank) for rank in range(shards * stages)]
        assert [grid.answers for grid in grids] == [False] * (len(grids) - 1) + [True]
        assert grids[-1].is_last_stage
        assert grids[0].is_first_stage


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(0, 200), st.integers(1, 9))
def test_the_dearest_stage_is_as_cheap_as_can_be(costs, head_cost, num_stages):
    if num_stages > len(costs):
        with pytest.raises(ModelError, match=f"cannot be split into {num_stages} stages"):
            split_layers(costs, head_cost, num_stages)
        return
    stages = split_layers(costs, head_cost, num_stages)
    assert [layer for stage in stages for layer in stage] == list(range(len(costs)))
    assert len(stages) == num_stages
    assert all(len(stage) for stage in stages)

    def dearest(ends: tuple[int, ...]) -> int:
        sums = [sum(costs[a:b]) for a, b in itertools.pairwise((0, *ends, len(costs)))]
        sums[-1] += head_cost
        return max(sums)

    cuts = itertools.combinations(range(1, len(costs)), num_stages - 1)
    assert dearest(tuple(stage.stop for stage in stages[:-1])) == min(map(dearest, cuts))
