"""The stand-in for the ranks must notice what would make a real rank's answer wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from actors.errors import ProtocolError
from actors.messages import KVCommit, NewRequest, Row, StepMessage, StepReply
from actors.request_manager.scripted_llm import ScriptedLLM
from actors.sampling import SamplingParams
from actors.tree import TokenTree

GREEDY = SamplingParams(temperature=0.0)


def new(request_id: int, *reused: int) -> NewRequest:
    return NewRequest(request_id, 1, GREEDY, reused_blocks=reused)


def chain(request_id: int, start: int, ids: Sequence[int], *blocks: int) -> Row:
    return Row(request_id, start, TokenTree.chain(ids), blocks)


def run(llm: ScriptedLLM, *messages: StepMessage) -> StepReply:
    async def steps() -> StepReply:
        for message in messages:
            reply = await llm.step(message)
        return reply

    return asyncio.run(steps())


@pytest.fixture
def llm() -> ScriptedLLM:
    """Sums its tokens. Request 0 has run 1 2 3 4, and then a tree: 5 → 6 | 7."""
    llm = ScriptedLLM(lambda tokens, _: sum(tokens), block_tokens=4)
    tree = Row(0, 4, TokenTree.from_paths([(5, 6), (5, 7)]), (1,))
    run(
        llm,
        StepMessage(0, 0, new=(new(0),), rows=(chain(0, 0, [1, 2, 3, 4], 0),)),
        StepMessage(0, 1, commits=(KVCommit(0, (0, 1, 2, 3)),), rows=(tree,)),
    )
    return llm


def test_reused_blocks_are_read_as_ones_own(llm: ScriptedLLM) -> None:
    message = StepMessage(0, 2, new=(new(1, 0),), rows=(chain(1, 4, [10], 2),))
    assert run(llm, message).results[0].drawn_ids == (20,)


def test_the_committed_branch_can_be_read(llm: ScriptedLLM) -> None:
    message = StepMessage(0, 2, commits=(KVCommit(0, (0, 2)),), rows=(chain(0, 6, [1]),))
    assert run(llm, message).results[0].drawn_ids == (23,)


@pytest.mark.parametrize(
    "fields",
    [
        {"commits": (KVCommit(0, (0, 1)),), "new": (new(1, 1),), "rows": (chain(1, 4, [1], 2),)},
        {"commits": (KVCommit(0, (1, 2)),), "rows": (chain(0, 6, [1]),)},
        {"new": (new(1, 0),), "rows": (chain(1, 3, [1]),)},
        {"new": (new(1, 0),), "rows": (chain(1, 4, [1], 0),)},
        {"trims": (0,)},
    ],
    ids=["block of another place", "nodes of two paths", "start too early", "shared", "trim"],
)
def test_wrong_kv_is_noticed(llm: ScriptedLLM, fields: dict) -> None:
    with pytest.raises(ProtocolError):
        run(llm, StepMessage(0, 2, **fields))


def test_a_row_into_a_shared_block_is_noticed(llm: ScriptedLLM) -> None:
    """Block 1 is half full, and reused nevertheless."""
    messages = (
        StepMessage(0, 2, commits=(KVCommit(0, (0, 2)),), new=(new(1, 0, 1),)),
        StepMessage(0, 3, rows=(chain(0, 6, [1]),)),
    )
    with pytest.raises(ProtocolError, match="shared"):
        run(llm, *messages)
