"""What a rank refuses, what it remembers, and that a refused message leaves no trace."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_models import VOCAB_SIZE, tiny_house

from actors.errors import ProtocolError, StaleEpoch
from actors.llm.message_checks import check_message
from actors.messages import KVCommit, NewRequest, Row, StepMessage
from actors.sampling import SamplingParams
from actors.tree import TokenTree
from actors.verification import Draws, NodeDraws, Rule

BLOCK_TOKENS = 4
NUM_BLOCKS = 32


@pytest.fixture
def house():
    """Request 0 holds blocks 0 and 1; its last row, a tree, awaits its commit."""
    house = tiny_house("llama")
    house.free_blocks.sort(reverse=True)
    house.add(0)
    prompt = house.row(0, TokenTree.chain([3, 4, 5]))
    house.step(prompt)
    house.commit(prompt, range(3))
    house.step(house.row(0, TokenTree.from_paths([(6, 7), (6, 8)])))
    return house


def chain(request_id, start, ids, new_blocks=(), **more):
    return Row(request_id, start, TokenTree.chain(ids), tuple(new_blocks), **more)


def new(request_id, **more):
    return NewRequest(request_id, 1, SamplingParams(temperature=0.0), **more)


def drawn(node, *tokens):
    return (NodeDraws(node, Draws(tokens, tuple(set(tokens)), (1.0,) * len(set(tokens)))),)


KEEP = KVCommit(0, (0, 2))
BAD_STEPS = {
    "row of an unknown request": {"rows": (chain(9, 0, [1], [5]),)},
    "commit of an unknown request": {"commits": (KVCommit(9, (0,)),)},
    "release of an unknown request": {"releases": (9,)},
    "request announced twice": {"new": (new(0),)},
    "block that is not there": {"new": (new(1),), "rows": (chain(1, 0, [1], [NUM_BLOCKS]),)},
    "negative block": {"new": (new(1),), "rows": (chain(1, 0, [1], [-1]),)},
    "block of another request": {"new": (new(1),), "rows": (chain(1, 0, [1], [0]),)},
    "block granted twice in a step": {
        "new": (new(1), new(2)),
        "rows": (chain(1, 0, [1], [5]), chain(2, 0, [1], [5])),
    },
    "draws at no node": {
        "new": (new(1, verification=Rule.MSS),),
        "rows": (chain(1, 0, [1], [5], draws=drawn(1, 6)),),
    },
    "draws outside the vocabulary": {
        "new": (new(1, verification=Rule.MSS),),
        "rows": (chain(1, 0, [1], [5], draws=drawn(0, VOCAB_SIZE)),),
    },
    "draws under a rule that has no use for them": {
        "new": (new(1),),
        "rows": (chain(1, 0, [1], [5], draws=drawn(0, 6)),),
    },
    "a token drawn twice without replacement": {
        "new": (new(1, verification=Rule.MSS),),
        "rows": (chain(1, 0, [1], [5], draws=drawn(0, 6, 6)),),
    },
    "reused block that is not there": {"new": (new(1, reused_blocks=(NUM_BLOCKS,)),)},
    "reused block that was never filled": {"new": (new(1, reused_blocks=(0, 7)),)},
    "block reused twice": {"new": (new(1, reused_blocks=(0, 0)),)},
    "reused block granted": {
        "commits": (KEEP,),
        "new": (new(1, reused_blocks=(0,)),),
        "rows": (chain(1, 4, [1], [0]),),
    },
    "row into a block that is reused": {
        "commits": (KEEP,),
        "new": (new(1, reused_blocks=(0, 1)),),
        "rows": (chain(0, 5, [1]),),
    },
    "trim of an unknown request": {"trims": (9,)},
    "trim of a row that awaits its commit": {"trims": (0,)},
    "block granted that a trim left": {
        "commits": (KEEP,),
        "trims": (0,),
        "new": (new(1),),
        "rows": (chain(1, 0, [1], [1]),),
    },
    "slot beyond the blocks": {"new": (new(1),), "rows": (chain(1, 0, range(5), [5]),)},
    "start beyond what is committed": {"commits": (KEEP,), "rows": (chain(0, 6, [1]),)},
    "two rows of a request": {"commits": (KEEP,), "rows": (chain(0, 5, [1]), chain(0, 5, [2]))},
    "kept node that is not there": {"commits": (KVCommit(0, (0, 3)),)},
    "kept nodes of two paths": {"commits": (KVCommit(0, (0, 1, 2)),)},
    "kept nodes out of order": {"commits": (KVCommit(0, (2, 0)),)},
    "row committed twice": {"commits": (KEEP, KEEP)},
    "token that the model does not have": {"commits": (KEEP,), "rows": (chain(0, 5, [61]),)},
    "banned token that the model does not have": {"new": (new(1, banned_early=(61,)),)},
    "empty row": {"commits": (KEEP,), "rows": (chain(0, 5, []),)},
    "output node that is not there": {
        "commits": (KEEP,),
        "rows": (chain(0, 5, [1], first_output=2),),
    },
    "more scored tokens than outputs": {
        "commits": (KEEP,),
        "rows": (chain(0, 5, [1], scored_ids=(1, 2)),),
    },
    "beyond the context": {
        "new": (new(1),),
        "rows": (chain(1, 0, [1] * 257, range(2, 32)),),
    },
}


@pytest.mark.parametrize("fields", BAD_STEPS.values(), ids=BAD_STEPS)
def test_refused_and_without_a_trace(house, fields):
    with pytest.raises(ProtocolError):
        house.rank.step(StepMessage(0, house.next_step, **fields))
    house.commit(chain(0, 3, [6, 6, 8]), [0, 2])
    house.add(1)
    rows = [house.row(0, TokenTree.chain([9])), house.row(1, TokenTree.chain(range(5)))]
    _, logits = house.step(*rows)
    expected = torch.cat([house.expected(row) for row in rows])
    torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)


def test_a_tree_larger_than_the_kernels_take_is_refused_and_a_chain_is_not(house):
    description = dataclasses.replace(house.rank.describe(), max_nodes_per_row=3)
    tree = Row(0, 0, TokenTree.from_paths([(1, 2), (1, 3), (4,)]))
    with pytest.raises(ProtocolError, match="tree of 4 nodes"):
        check_message(StepMessage(0, 0, rows=(tree,)), description)
    check_message(StepMessage(0, 0, rows=(chain(0, 0, [1, 2, 3, 4]),)), description)


def test_a_repeat_is_answered_from_memory(house):
    message = house.message()
    reply = house.rank.step(message)
    house.recorder.logits = None
    assert house.rank.step(message) is reply
    assert house.recorder.logits is None


@pytest.mark.parametrize("ahead", [1, -40])
def test_steps_run_in_order(house, ahead):
    with pytest.raises(ProtocolError):
        house.rank.step(StepMessage(0, house.next_step + ahead))


def test_an_old_epoch_is_refused_and_a_newer_one_forgets(house):
    first = StepMessage(5, 0, new=(new(0),), rows=(chain(0, 0, [3], [0]),))
    house.rank.step(first)
    with pytest.raises(StaleEpoch):
        house.rank.step(StepMessage(0, house.next_step))
    with pytest.raises(ProtocolError):
        house.rank.step(dataclasses.replace(first, epoch=6, step_id=3))
    house.rank.step(StepMessage(5, 1, commits=(KVCommit(0, (0,)),), rows=(chain(0, 1, [4]),)))
    logits = house.recorder.logits
    expected = house.reference(torch.tensor([[3, 4]])).logits[0, -1:]
    torch.testing.assert_close(logits, expected, atol=1e-9, rtol=0)


def test_released_blocks_serve_another_request_in_the_same_step(house):
    row = chain(1, 0, range(8), [1, 0])
    house.rank.step(StepMessage(0, house.next_step, releases=(0,), new=(new(1),), rows=(row,)))
    expected = house.reference(torch.arange(8)[None]).logits[0]
    torch.testing.assert_close(house.recorder.logits, expected, atol=1e-9, rtol=0)


def test_a_preempted_request_comes_back_under_its_number(house):
    row = chain(0, 0, range(6), [9, 4])
    message = StepMessage(0, house.next_step, releases=(0,), new=(new(0),), rows=(row,))
    house.rank.step(message)
    expected = house.reference(torch.arange(6)[None]).logits[0]
    torch.testing.assert_close(house.recorder.logits, expected, atol=1e-9, rtol=0)


def test_trimmed_blocks_serve_another_request_in_the_same_step(house):
    """Of the row's three nodes one is kept: the second block is empty."""
    row = chain(1, 0, range(8), [1, 2])
    keep = KVCommit(0, (0,))
    message = StepMessage(0, house.next_step, commits=(keep,), new=(new(1),), rows=(row,))
    house.rank.step(dataclasses.replace(message, trims=(0,)))
    expected = house.reference(torch.arange(8)[None]).logits[0]
    torch.testing.assert_close(house.recorder.logits, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("released", [False, True])
def test_a_block_filled_for_one_request_serves_another(house, released):
    """Through a tree: of 6 → 7 | 8 the other branch is committed, and its KV moves."""
    reusing = new(1, reused_blocks=(0,))
    commit = KVCommit(0, (0, 2))
    rows = [chain(1, 4, [8, 9, 2], [5])] + ([] if released else [chain(0, 5, [8])])
    message = StepMessage(0, house.next_step, commits=(commit,), new=(reusing,), rows=tuple(rows))
    house.rank.step(dataclasses.replace(message, releases=(0,) if released else ()))
    expected = house.reference(torch.tensor([[3, 4, 5, 6, 8, 9, 2]])).logits[0, 4:]
    torch.testing.assert_close(house.recorder.logits[:3], expected, atol=1e-9, rtol=0)
    house.rank.step(StepMessage(0, house.next_step + 1, releases=(1,)))
    assert (house.rank._tables.holders > 0).sum() == (0 if released else 2)


def test_what_a_released_request_left_cannot_spread(house):
    house.rank._cache.data.fill_(torch.nan)
    test_released_blocks_serve_another_request_in_the_same_step(house)


def test_rows_without_outputs_have_no_result(house):
    house.commit(chain(0, 3, [6, 6, 8]), [0])
    reply, _ = house.step(house.row(0, TokenTree.chain([1, 2]), first_output=2))
    assert reply.results == ()
    assert house.step()[0].results == ()


def test_description(house):
    description = house.rank.describe()
    assert (description.num_kv_blocks, description.kv_block_tokens) == (NUM_BLOCKS, BLOCK_TOKENS)
    assert (description.vocab_size, description.max_context_tokens) == (61, 256)
    assert description.max_request_tokens == NUM_BLOCKS * BLOCK_TOKENS < 256
    assert (description.dtype, description.device) == ("float64", "cpu")


@pytest.mark.parametrize(
    ("sampling", "more"),
    [
        ({"presence_penalty": 1.0}, {}),
        ({"presence_penalty": 1.0}, {"token_ids": (3, 61)}),
        ({"logit_bias": ((61, 1.0),)}, {}),
    ],
)
def test_a_request_whose_steps_cannot_be_run_is_refused(house, sampling, more):
    """Penalties without the text that they count, or token ids that the model does not have."""
    wrong = NewRequest(1, 2, SamplingParams(**sampling), **more)
    with pytest.raises(ProtocolError, match="request 1"):
        house.rank.step(StepMessage(0, house.next_step, new=(wrong,)))


def test_draws_that_a_rule_can_weigh_are_taken(house):
    row = chain(1, 0, [1], [5], draws=drawn(0, 6, 7))
    message = StepMessage(0, house.next_step, new=(new(1, verification=Rule.MSS),), rows=(row,))
    assert len(house.rank.step(message).results) == 1
