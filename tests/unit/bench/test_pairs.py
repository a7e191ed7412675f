"""Interleaved pairs: who is first, what is counted, and what is made of it."""

from __future__ import annotations

import asyncio
import functools
import json

import pytest

from cluster.bench.paired_runs import Pairs, Plan, Run, interval, lengths, run_arm, run_pairs
from cluster.bench.raw_client import RawAnswer

PLAIN, BUDGET = "plain", "budget"


def answer(*tokens: int, steps: int = 1) -> RawAnswer:
    chunks = [{"choices": [{"text": "x", "token_ids": [token]}]} for token in tokens]
    account = {"speculative_decoding": {"num_llm_steps": steps, "num_draft_tokens": 3 * steps}}
    last = {"choices": [], "usage": {"completion_tokens": len(tokens)}, "metrics": account}
    lines = [f"data: {json.dumps(chunk)}" for chunk in [*chunks, last]]
    data = "".join(f"{line}\n\n" for line in [*lines, "data: [DONE]"]).encode()
    ends = [data.index(line.encode()) + len(line) + 2 for line in lines[:-1]]
    return RawAnswer(0.1, data, [(float(number), end) for number, end in enumerate(ends)])


def test_an_answer_is_read_from_its_bytes():
    found = answer(5, 6, 7, steps=2)
    assert (found.num_tokens, found.num_llm_steps, found.token_ids) == (3, 2, (5, 6, 7))
    assert found.num_draft_nodes == 6
    assert [found.tokens_by(time_s) for time_s in (-1.0, 0.0, 1.5, 9.0)] == [0, 1, 2, 3]
    half = RawAnswer(0.1, found.data, [(0.0, found.arrivals[1][1] - 8)])
    assert half.tokens_by(0.0) == 1, "half a chunk is none"


async def test_arms_and_batches_take_turns_and_the_first_pair_is_not_counted():
    asked = []

    async def ask(arm, prompt, max_tokens):
        asked.append((arm, max_tokens, prompt))
        return answer(*range(max_tokens), steps=1)

    arms = {arm: functools.partial(ask, arm) for arm in (PLAIN, BUDGET)}
    found = await run_pairs(["a", "b", "c"], arms, Plan([1, 2], 4, 3, 8))
    assert [len(found[batch].runs) for batch in (1, 2)] == [4, 4]
    place = 0
    for number in range(-1, 4):
        for batch in (1, 2):
            size = 3 * batch  # answers of an arm
            block, place = asked[place : place + 4 * size], place + 4 * size
            sizes = [max_tokens for _, max_tokens, _ in block]
            assert sizes == 2 * [1] * size + 2 * lengths(size, 8), "every prompt is computed before"
            assert {arm for arm, _, _ in block[: 2 * size]} == {PLAIN, BUDGET}
            prompts = [[prompt for _, _, prompt in block[i::size]] for i in range(size)]
            assert all(len(set(same)) == 1 for same in prompts), "the arms have the same prompts"
            first = block[2 * size][0]
            assert first == (BUDGET if number % 2 else PLAIN)


async def test_a_stream_that_is_done_asks_again_so_that_the_batch_stays_full():
    open_now, most, order = 0, 0, []

    async def ask(prompt, max_tokens):
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        for _ in range(prompt):
            await asyncio.sleep(0)
        open_now -= 1
        order.append(prompt)
        return answer(prompt)

    run = await run_arm(ask, [9, 2, 2, 2, 5], 2, [4] * 5)
    assert [found.token_ids for found in run.answers] == [(9,), (2,), (2,), (2,), (5,)]
    assert (most, order) == (2, [2, 2, 2, 9, 5])


def test_figures_of_a_batch_size():
    pairs = Pairs(PLAIN, BUDGET)
    for seconds, other in ((1.0, 2.0), (1.0, 3.0), (1.0, 4.0)):
        # Token i comes at i s: 6 of them while the batch is full.
        fast = Run(5.0 - seconds, 5.0, [answer(1, 2, 3, 4, 5, 6, 7, steps=3)])
        slow = Run(5.0 - other, 5.0, [answer(1, 2, 3, 4, 5, 6, int(other) + 5, steps=6)])
        pairs.runs.append({BUDGET: fast, PLAIN: slow})
    found = pairs.summary()
    assert found["ratios"] == pytest.approx([2.0, 3.0, 4.0])
    assert (found["ratio"], found["pairs"]) == (pytest.approx(3.0), 3)
    assert found["tokens_per_step"] == pytest.approx(2.0)
    assert found["nodes_per_step"] == pytest.approx(3.0)
    assert (found["texts"], found["equal_texts"]) == (3, 1)
    assert found["plain_tokens_per_s"] == pytest.approx(6 / 3)
    assert 2.0 <= found["low"] <= found["ratio"] <= found["high"] <= 4.0


def test_the_interval_covers_the_middle_and_narrows():
    spread = [1.0 + 0.1 * number for number in range(10)]
    low, high = interval(spread)
    assert 1.0 <= low < 1.45 < high <= 1.9
    assert interval([1.2] * 10) == (1.2, 1.2)
    more_low, more_high = interval(spread * 10)
    assert more_high - more_low < high - low


def test_answers_are_of_all_lengths_about_the_mean():
    found = lengths(500, 64)
    assert (min(found), max(found)) == (32, 96)
    assert sum(found) / 500 == pytest.approx(64, abs=2)
    assert found == lengths(500, 64)
    assert set(lengths(50, 1)) == {1}
