"""Counts by depth against what they are defined as, and against the engine's own output."""

from __future__ import annotations

from actors.request_manager.depth_counts import DepthCounts
from actors.tree import TokenTree
from tests.unit.request_manager.house import House, OracleDrafter, ask, collect


def test_one_step() -> None:
    #       0: a      3: e
    #      1   2        4
    tree = TokenTree((7, 8, 9, 3, 4), (-1, 0, 0, -1, 3))
    proposers = [{"x", "y"}, {"x"}, {"y"}, {"x"}, {"x"}]
    counts = DepthCounts()
    counts.count(tree, proposers, [0, 2])
    assert counts.reached == {0: 1, 1: 1, 2: 1}
    assert counts.offered == {0: 1, 1: 1}
    assert counts.offered_by == {("x", 0): 1, ("y", 0): 1, ("x", 1): 1, ("y", 1): 1}
    assert counts.accepted_by == {("x", 0): 1, ("y", 0): 1, ("y", 1): 1}
    assert counts.tree_depths == {2: 1}


def test_drafts_beside_the_accepted_path_are_not_offered() -> None:
    counts = DepthCounts()
    counts.count(TokenTree((7, 8, 9), (-1, 0, -1)), [{"x"}] * 3, [2])
    assert counts.reached == {0: 1, 1: 1}
    assert counts.offered == {0: 1}, "the node at depth 1 hangs below one that was refused"


def test_a_step_without_drafts_reaches_the_root_only() -> None:
    counts = DepthCounts()
    counts.count(TokenTree(), [], [])
    assert counts.reached == {0: 1}
    assert not counts.offered
    assert not counts.tree_depths


async def test_the_engine_counts_every_decoding_step() -> None:
    house = House((OracleDrafter(),))
    async with house as engine:
        stats = (await collect(engine, ask(max_tokens=60))).stats
    assert stats is not None
    counts = DepthCounts()
    for record in house.watcher.steps:
        for name in vars(counts):
            getattr(counts, name).update(getattr(record.depths, name))
    num_accepted = sum(count for depth, count in counts.reached.items() if depth > 0)
    assert counts.reached[0] == stats.num_llm_steps
    # The oracle's last tree may have gone beyond the end of the output.
    assert 0 <= num_accepted - stats.num_accepted_draft_tokens <= 6
    assert counts.accepted_by == {
        ("oracle", depth - 1): count for depth, count in counts.reached.items() if depth > 0
    }
    assert counts.offered_by == {("oracle", depth): n for depth, n in counts.offered.items()}
    assert counts.tree_depths.total() == stats.num_spec_steps
