"""Manager and rank together, without a wire: a tiny random model behind the real loop.

What comes out is compared with the stock model's forward passes over the whole text, in float64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import scipy.stats
import torch

from actors.request_manager.generation import SpeculationOptions
from actors.sampling import SamplingParams
from tests.unit.llm.tiny_models import VOCAB_SIZE, tiny_model
from tests.unit.near_rank import PROMPTS, answers, ask, engine_on
from tests.unit.request_manager.house import collect


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return tiny_model("llama-yarn")


@torch.inference_mode()
def exact_logprobs(model: torch.nn.Module, tokens: Sequence[int]) -> torch.Tensor:
    return torch.log_softmax(model(torch.tensor([list(tokens)])).logits[0], -1)


def greedy(model: torch.nn.Module, prompt: Sequence[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(exact_logprobs(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("num_blocks", [64, 22])
async def test_greedy_text_is_the_stock_models_own(model, num_blocks: int) -> None:
    """Alone, together, and with so few blocks that requests are preempted."""
    async with engine_on(num_blocks) as engine:
        together = await answers(engine, [ask(prompt) for prompt in PROMPTS])
        alone = [await collect(engine, ask(prompt)) for prompt in PROMPTS]
    for prompt, one, other in zip(PROMPTS, together, alone, strict=True):
        assert list(one.token_ids) == greedy(model, prompt, 40)
        assert one.token_ids == other.token_ids
    assert sum(answer.stats.num_accepted_draft_tokens for answer in together) > 20


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_log_probabilities_are_the_models_own_under_speculation(model, temperature) -> None:
    sampling = SamplingParams(temperature=temperature, seed=5)
    requests = [ask(prompt, sampling=sampling, num_logprobs=5) for prompt in PROMPTS]
    async with engine_on() as engine:
        for prompt, answer in zip(PROMPTS, await answers(engine, requests), strict=True):
            exact = exact_logprobs(model, [*prompt, *answer.token_ids])[len(prompt) - 1 : -1]
            assert [entry.token_id for entry in answer.logprobs] == list(answer.token_ids)
            for row, entry in zip(exact, answer.logprobs, strict=True):
                best = row.topk(5)
                assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-6)
                assert entry.top.token_ids == tuple(best.indices.tolist())
                assert entry.top.logprobs == pytest.approx(best.values.tolist(), abs=1e-6)


async def test_prompt_log_probabilities_over_chunks(model) -> None:
    prompt = [token % VOCAB_SIZE for token in range(3, 90)]
    async with engine_on(max_batch_tokens=16) as engine:
        scored, other = await answers(
            engine, [ask(prompt, 0, prompt_logprobs=2), ask(PROMPTS[0], 30)]
        )
    exact = exact_logprobs(model, prompt)
    assert scored.token_ids == ()
    assert [entry.token_id for entry in scored.prompt_logprobs] == prompt[1:]
    for place, entry in enumerate(scored.prompt_logprobs):
        assert entry.logprob == pytest.approx(exact[place, prompt[place + 1]].item(), abs=1e-6)
        assert entry.top.token_ids == tuple(exact[place].topk(2).indices.tolist())
    assert len(other.token_ids) == 30


async def test_a_seed_gives_one_text_whatever_else_runs() -> None:
    mixed = SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.01, seed=3)
    for sampling in (SamplingParams(temperature=1.0, seed=3), mixed):
        async with engine_on() as engine:
            alone = [await collect(engine, ask(prompt, sampling=sampling)) for prompt in PROMPTS]
            plain = SpeculationOptions(enabled=False)
            off = await answers(
                engine, [ask(p, sampling=sampling, speculation=plain) for p in PROMPTS]
            )
            beside = await answers(
                engine,
                [ask(p, sampling=s) for p in PROMPTS for s in (sampling, SamplingParams(seed=9))],
            )
        for one, other, third in zip(alone, off, beside[::2], strict=True):
            assert one.token_ids == other.token_ids == third.token_ids
        assert [a.token_ids for a in alone] != [b.token_ids for b in beside[1::2]]


async def test_tokens_are_drawn_as_often_as_due_under_speculation(model) -> None:
    """2,000 seeds: first and second tokens against the model's own probabilities."""
    prompt, num_samples = list(range(VOCAB_SIZE)), 2000  # every token has a place to copy from
    async with engine_on(num_blocks=200, max_batch_tokens=256) as engine:
        drawn = await answers(
            engine,
            [ask(prompt, 3, sampling=SamplingParams(seed=seed)) for seed in range(num_samples)],
        )
    assert sum(answer.stats.num_draft_tokens for answer in drawn) > num_samples // 2
    first = Counter(answer.token_ids[0] for answer in drawn)
    likely = first.most_common(1)[0][0]
    second = Counter(a.token_ids[1] for a in drawn if a.token_ids[0] == likely)
    for tokens, counts in (([], first), ([likely], second)):
        probabilities = exact_logprobs(model, [*prompt, *tokens])[-1].exp()
        assert chi_square(counts, probabilities) > 1e-3


def chi_square(counts: Counter[int], probabilities: torch.Tensor) -> float:
    """p value; words expected less than five times are taken together."""
    total = sum(counts.values())
    often = [token for token, p in enumerate(probabilities.tolist()) if p * total >= 5]
    observed = [counts[token] for token in often]
    expected = [probabilities[token].item() * total for token in often]
    observed.append(total - sum(observed))
    expected.append(total - sum(expected))
    if expected[-1] < 1e-6 * total:
        observed.pop()
        expected.pop()
    return float(scipy.stats.chisquare(observed, expected, sum_check=False).pvalue)
