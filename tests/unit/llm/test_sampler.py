"""Draws and log-probabilities against numpy and transformers' logits processors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from actors.llm.sampler import Context, Sampler
from actors.logit_steps import kept_ids
from actors.messages import NewRequest, Row
from actors.noise import NoiseSource
from actors.sampling import SamplingParams
from actors.tree import TokenTree

VOCAB_SIZE = 50
TREE = TokenTree.from_paths([(1, 2, 3), (1, 4), (5,)])


def draw(logits, sampling, row=None, **request):
    row = row or Row(0, 10, TREE)
    new = NewRequest(0, request.pop("prompt_len", 4), sampling, **request)
    [result] = Sampler(NoiseSource(logits.shape[1])).sample([row], [Context(new)], logits)
    return result


def some_logits(num_nodes=5, seed=0, scale=3.0):
    return torch.randn(num_nodes, VOCAB_SIZE, generator=torch.manual_seed(seed)) * scale


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 7, 50, 80])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-6])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 1.0])
def test_support_is_that_of_transformers(temperature, top_k, top_p, min_p):
    processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        processors.append(TopPLogitsWarper(top_p))
    if min_p:
        processors.append(MinPLogitsWarper(min_p))
    logits = some_logits(8).double()
    warped = processors(torch.zeros(8, 1, dtype=torch.long), logits.clone())
    sampling = SamplingParams(temperature, top_k, top_p, min_p)
    for node in range(8):
        kept = kept_ids(logits[node].float().numpy(), sampling)
        assert kept.tolist() == warped[node].isfinite().nonzero()[:, 0].tolist()


def test_nucleus_of_a_flat_distribution_spans_it():
    logits = np.zeros(1000, dtype=np.float32)
    assert len(kept_ids(logits, SamplingParams(top_p=0.7501))) == 751
    far = np.concatenate((np.zeros(1), np.full(10**6, -20.0))).astype(np.float32)
    assert len(kept_ids(far, SamplingParams(top_p=0.999))) > 1


def test_ties_at_the_edges():
    logits = np.asarray([1.0, 2.0, 2.0, 2.0, 0.0], dtype=np.float32)
    assert kept_ids(logits, SamplingParams(top_k=2)).tolist() == [1, 2, 3]
    assert kept_ids(logits, SamplingParams(top_p=0.4)).tolist() == [1, 2]


@pytest.mark.parametrize(
    "more", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.9}]
)
def test_draws_are_the_argmax_of_perturbed_logits(more):
    sampling = SamplingParams(temperature=0.8, seed=77, **more)
    noise = NoiseSource(VOCAB_SIZE)
    for seed in range(20):
        logits = some_logits(seed=seed)
        expected = []
        for node, depth in enumerate(TREE.depths):
            row = logits[node].numpy()
            scores = np.full(VOCAB_SIZE, -np.inf, dtype=np.float32)
            kept = kept_ids(row, sampling)
            perturbed = row + np.float32(0.8) * noise.get(77, 10 + depth + 1)
            scores[kept] = perturbed[kept]
            expected.append(int(np.argmax(scores)))
        assert draw(logits, sampling).drawn_ids == tuple(expected)


def test_draws_follow_the_distribution():
    logits = some_logits(1, scale=1.5)
    sampling = SamplingParams(temperature=1.3, top_k=12, seed=5)
    counts = np.zeros(VOCAB_SIZE)
    sampler = Sampler(NoiseSource(VOCAB_SIZE))
    num_draws = 4000
    for position in range(num_draws):
        row = Row(0, position, TokenTree.chain([1]))
        [result] = sampler.sample([row], [Context(NewRequest(0, 1, sampling))], logits)
        counts[result.drawn_ids[0]] += 1
    kept = kept_ids(logits[0].numpy(), sampling)
    probabilities = torch.softmax(logits[0, kept].double() / 1.3, -1).numpy()
    assert counts.sum() == counts[kept].sum()
    chi_square = (
        (counts[kept] - num_draws * probabilities) ** 2 / (num_draws * probabilities)
    ).sum()
    assert chi_square < 35  # 11 degrees of freedom: exceeded by chance once in 4,000


@pytest.mark.parametrize("tiny", [{"temperature": 1e-9}, {"temperature": 1e-4}, {"top_p": 1e-4}])
def test_tiny_numbers_are_greedy(tiny):
    for seed in range(20):
        logits = some_logits(seed=seed)
        greedy = draw(logits, SamplingParams(temperature=0.0)).drawn_ids
        assert draw(logits, SamplingParams(seed=seed, **tiny)).drawn_ids == greedy


def test_greedy_takes_the_lowest_of_equal_ids():
    logits = torch.zeros(len(TREE), VOCAB_SIZE)
    logits[:, [9, 30]] = 4.0
    assert set(draw(logits, SamplingParams(temperature=0.0)).drawn_ids) == {9}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_bans_until_they_are_there(temperature):
    """Nodes 0, 4 draw position 11, nodes 1, 3 position 12, node 2 position 13."""
    logits = torch.zeros(len(TREE), VOCAB_SIZE)
    logits[:, 9] = 1e4
    sampling = SamplingParams(temperature=temperature, min_tokens=8)
    drawn = draw(logits, sampling, prompt_len=4, banned_early=(9,)).drawn_ids
    assert [token == 9 for token in drawn] == [False, True, True, True, False]
    assert logits[0, 9] == 1e4


def test_logprobs_are_of_the_raw_logits():
    logits = some_logits()
    exact = torch.log_softmax(logits.double(), -1)
    sampling = SamplingParams(temperature=0.5, top_k=2, min_tokens=99)
    result = draw(logits, sampling, num_logprobs=3, banned_early=(7,))
    for node, (token, logprob) in enumerate(zip(result.drawn_ids, result.logprobs, strict=True)):
        assert logprob == pytest.approx(exact[node, token].item(), abs=1e-9)
        best = exact[node].topk(3)
        assert result.top[node].token_ids == tuple(best.indices.tolist())
        assert result.top[node].logprobs == pytest.approx(best.values.tolist(), abs=1e-9)


def test_scored_ids_stand_in_for_the_first_drawn_ones():
    logits = some_logits(3)
    exact = torch.log_softmax(logits.double(), -1)
    row = Row(0, 0, TokenTree.chain([1, 2, 3]), scored_ids=(8, 9))
    result = draw(logits, SamplingParams(temperature=0.0), row, num_logprobs=0)
    tokens = (8, 9, result.drawn_ids[2])
    expected = [exact[node, token].item() for node, token in enumerate(tokens)]
    assert result.logprobs == pytest.approx(expected, abs=1e-9)
    assert {top.token_ids for top in result.top} == {()}


def test_no_logprobs_unless_wanted():
    assert draw(some_logits(), SamplingParams()).logprobs == ()


def test_results_do_not_depend_on_the_batch():
    sampling = SamplingParams(temperature=0.9, top_p=0.8, seed=3)
    alone = [
        draw(some_logits(1, seed), sampling, Row(0, seed, TokenTree.chain([1])), num_logprobs=2)
        for seed in range(6)
    ]
    rows = [Row(0, seed, TokenTree.chain([1])) for seed in range(6)]
    contexts = [Context(NewRequest(0, 4, sampling, num_logprobs=2))] * 6
    logits = torch.cat([some_logits(1, seed) for seed in range(6)])
    assert Sampler(NoiseSource(VOCAB_SIZE)).sample(rows, contexts, logits) == alone
