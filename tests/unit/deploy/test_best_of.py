"""`best_of`: more outputs than choices, of which the most probable per token are shown."""

from __future__ import annotations

import pytest

from actors.sampling import derived_seed

SEEDS = [derived_seed(5, number) for number in range(4)]
LENGTHS = [6, 3, 9, 4]
"""Tokens of each candidate; scripted log-probabilities fall with the place, so short ones win."""


@pytest.fixture
def served(serve, ids):
    def script(request):
        return ids("abcdefghij")[: LENGTHS[SEEDS.index(request.sampling.seed)] - 1]

    return serve(script)


@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("n", [1, 2, 4])
async def test_the_most_probable_per_token_are_shown(served, n, logprobs):
    body = {"prompt": ["Hello", "HI"], "n": n, "best_of": 4, "seed": 5, "logprobs": logprobs}
    answer = await served.complete(**body)
    ranked = sorted(LENGTHS)[:n] if n < 4 else LENGTHS
    texts = ["abcdefghij"[: length - 1] for length in ranked]
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * n))
    assert [choice["text"] for choice in answer["choices"]] == texts * 2
    assert {choice["logprobs"] is None for choice in answer["choices"]} == {logprobs is None}
    assert answer["usage"]["completion_tokens"] == 2 * sum(LENGTHS)
    assert len(served.backend.requests) == 8


async def test_a_chat_has_it_too(served):
    messages = [{"role": "user", "content": "Hello"}]
    answer = await served.chat(messages=messages, best_of=4, seed=5, max_tokens=20)
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "ab"
    assert choice["logprobs"] is None


async def test_without_more_candidates_than_choices_nothing_is_ranked_nor_scored(served):
    answer = await served.complete(prompt="Hello", n=4, best_of=4, seed=5)
    assert [request.num_logprobs for request in served.backend.requests] == [None] * 4
    assert [choice["text"] for choice in answer["choices"]] == [
        "abcdefghij"[: length - 1] for length in LENGTHS
    ]
