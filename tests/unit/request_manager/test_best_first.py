"""Trees grown best first are the likeliest nodes, in the order of their paths' probabilities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.request_manager.drafters.best_first import Limits, best_first
from actors.request_manager.drafters.matches import Alike, Match, ways_on
from tests.unit.request_manager.learning import by_path

WAYS: dict[str, list[tuple[int, float, str]]] = {
    "": [(1, 0.6, "1"), (2, 0.4, "2")],
    "1": [(3, 0.5, "13"), (4, 0.1, "14")],
    "2": [(5, 1.0, "25")],
}


def grow(max_nodes: int = 9, max_depth: int = 9, least: float = 0.0):
    limits = Limits(max_nodes, max_depth, least)
    return best_first("", lambda place: WAYS.get(place, []), limits)


def test_the_likeliest_path_comes_next_wherever_it_hangs() -> None:
    draft = grow()
    assert draft is not None
    assert draft.tree.token_ids == (1, 2, 5, 3, 4)  # .6, .4, .4, .3, .06
    assert draft.tree.parents == (-1, -1, 1, 0, 0)
    assert draft.scores == (0.6, 0.4, 1.0, 0.5, 0.1)


@pytest.mark.parametrize(
    ("limits", "token_ids"),
    [
        ({"max_nodes": 3}, (1, 2, 5)),
        ({"max_depth": 1}, (1, 2)),
        ({"least": 0.3}, (1, 2, 5, 3)),
        ({"least": 0.5}, (1,)),
    ],
)
def test_limits(limits, token_ids) -> None:
    assert grow(**limits).tree.token_ids == token_ids


@pytest.mark.parametrize("limits", [{"max_nodes": 0}, {"max_depth": 0}, {"least": 0.7}])
def test_nothing_is_no_draft(limits) -> None:
    assert grow(**limits) is None


def test_scores_are_shares_of_squared_lengths_trusted_by_length() -> None:
    matches = [Match(3, [5, 6]), Match(1, [5, 7]), Match(1, [8])]
    draft = best_first(Alike(matches), ways_on, Limits(9, 9, 0.0))
    assert by_path(draft) == {
        (5,): pytest.approx(3 / 4 * 10 / 11),
        (5, 6): pytest.approx(4 / 5 * 9 / 10),
        (5, 7): pytest.approx(2 / 3 * 1 / 10),
        (8,): pytest.approx(1 / 2 * 1 / 11),
    }


def test_a_place_that_ends_counts_against_those_that_go_on() -> None:
    draft = best_first(Alike([Match(2, [5]), Match(2, [5, 6])]), ways_on, Limits(9, 9, 0.0))
    assert by_path(draft)[5, 6] == pytest.approx(3 / 4 * 4 / 8)


@given(
    matches=st.lists(
        st.builds(Match, st.integers(1, 9), st.lists(st.integers(0, 3), max_size=6)), max_size=8
    ),
    max_nodes=st.integers(1, 12),
    least=st.floats(0.0, 0.5),
)
def test_a_smaller_tree_is_the_beginning_of_the_whole(matches, max_nodes, least) -> None:
    whole = best_first(Alike(matches), ways_on, Limits(1000, 6, 0.0))
    cut = best_first(Alike(matches), ways_on, Limits(max_nodes, 6, least))
    if whole is None:
        assert cut is None
        return
    scores = by_path(whole)
    odds = [
        math.prod(scores[path[: end + 1]] for end in range(len(path)))
        for path in (whole.tree.path_tokens(node) for node in range(len(whole.tree)))
    ]
    assert odds == pytest.approx(sorted(odds, reverse=True))
    wanted = [node for node, one in enumerate(odds) if one >= least][:max_nodes]
    assert list(by_path(cut)) == [whole.tree.path_tokens(node) for node in wanted]
