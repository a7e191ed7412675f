"""Trees of steps for those who ask: what they tell is what happened, and nobody else pays."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from actors.request_manager import shown_trees
from actors.request_manager.generation import GenerationEvent
from actors.request_manager.outbox import Outbox
from actors.request_manager.step_tree import MAX_WAITING_TREES, StepTree
from actors.tree import CONTEXT
from tests.unit.request_manager.house import House, OracleDrafter, ask, collect, expected

PROMPT = (1, 2, 3)
PHASES = {"draft", "merge", "step", "verify", "commit", "forward"}


def numbered(step: int) -> StepTree:
    return StepTree(step, (7,), (CONTEXT,), ((),), (1.0,), (), (8,), {})


def assert_tells_the_truth(tree: StepTree, before: int) -> None:
    """`before` is the token that the step began with."""
    assert tree.token_ids[0] == before
    assert tree.parents[0] == CONTEXT
    assert len(tree.token_ids) == len(tree.parents) == len(tree.proposers) == len(tree.estimates)
    assert tree.proposers[0] == ()
    assert set(tree.proposers[1:]) <= {("oracle",)}
    assert all(0.0 <= estimate <= 1.0 for estimate in tree.estimates)
    path = (0, *tree.accepted)
    assert all(tree.parents[node] == above for above, node in pairwise(path))
    taken = tuple(tree.token_ids[node] for node in tree.accepted)
    assert tree.committed_ids[: len(taken)] == taken
    assert len(tree.committed_ids) - len(taken) in (0, 1)
    below = {tree.token_ids[node] for node, above in enumerate(tree.parents) if above == path[-1]}
    assert not below & set(tree.committed_ids[len(taken) :]), "a draft was right and not accepted"
    assert set(tree.phase_s) == PHASES


async def test_trees_tell_how_the_output_came_about() -> None:
    house = House((OracleDrafter(),))
    async with house as engine:
        answer = await collect(engine, ask(PROMPT, 60, return_trees=True))
    assert answer.token_ids == expected(PROMPT, 60)
    told = [token for tree in answer.trees for token in tree.committed_ids]
    assert tuple(told) == answer.token_ids
    tokens = list(PROMPT)
    for number, tree in enumerate(answer.trees):
        assert tree.step == number
        assert_tells_the_truth(tree, tokens[-1])
        tokens += tree.committed_ids
    assert answer.stats is not None
    assert sum(len(tree.token_ids) - 1 for tree in answer.trees) == answer.stats.num_draft_tokens
    accepted = sum(len(tree.accepted) for tree in answer.trees)
    assert accepted == answer.stats.num_accepted_draft_tokens > 0


async def test_an_output_that_ends_within_what_was_accepted() -> None:
    """A stop token among accepted drafts: those behind it were right, and are not committed."""
    num_cut = 0
    for seed in range(12):
        async with House((OracleDrafter(seed),)) as engine:
            whole = await collect(engine, ask(PROMPT, 20, return_trees=True))
            for token in range(6):
                stop = {"stop_token_ids": (token,)}
                answer = await collect(engine, ask(PROMPT, 20, stop=stop, return_trees=True))
                last = answer.trees[-1]
                assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
                taken = tuple(last.token_ids[node] for node in last.accepted)
                assert taken == last.committed_ids[: len(taken)]
                num_cut += taken == last.committed_ids
    assert num_cut > 0


async def test_nobody_pays_who_did_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tree was made that nobody asked for")

    monkeypatch.setattr(shown_trees, "StepTree", refuse)
    monkeypatch.setattr(shown_trees, "replace", refuse)
    async with House((OracleDrafter(),)) as engine:
        answer = await collect(engine, ask(PROMPT, 30))
    assert answer.token_ids == expected(PROMPT, 30)
    assert answer.trees == ()


def test_events_are_left_alone_where_nobody_asks() -> None:
    events: list[GenerationEvent | None] = [None]
    assert shown_trees.with_trees([], [], events, {}, 0.0) is events


async def test_of_two_requests_in_a_step_only_one_is_shown() -> None:
    async with House((OracleDrafter(),)) as engine:
        shown, other = await asyncio.gather(
            collect(engine, ask(PROMPT, 30, "a", return_trees=True)),
            collect(engine, ask(PROMPT, 30, "b")),
        )
    assert shown.token_ids == other.token_ids == expected(PROMPT, 30)
    assert shown.trees
    assert other.trees == ()


async def test_trees_that_wait_for_a_late_reader_are_bounded() -> None:
    outbox = Outbox()
    sink = outbox.sink("a")
    for step in range(MAX_WAITING_TREES + 5):
        sink.put(GenerationEvent((step,), step, trees=(numbered(step),)))
    event = (await outbox.take())["a"].event
    assert event is not None
    assert len(event.token_ids) == MAX_WAITING_TREES + 5
    assert [tree.step for tree in event.trees] == list(range(5, MAX_WAITING_TREES + 5))
