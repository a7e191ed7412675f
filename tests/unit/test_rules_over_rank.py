"""Every verification rule from drafter to rank: a tiny LLM, a small draft model, prompt lookup.

Pairs of consecutive tokens of many seeds against the LLM's own probabilities, in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats

from actors.llm import ruled_draws
from actors.llm.loading import LoadedModel, wrap
from actors.llm.rank import Rank
from actors.messages import Row
from actors.noise import NoiseSource, draft_stream
from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.generation import SpeculationOptions
from actors.request_manager.ports import Draft, DraftTask
from actors.sampling import SamplingParams
from actors.ssm import draft_draws
from actors.ssm.candidates import CandidateRanker, DrawRules, Parent
from actors.ssm.growth import BestFirst, Growth
from actors.tree import CONTEXT
from actors.verification import Rule
from tests.unit.llm.tiny_models import VOCAB_SIZE, tiny_model
from tests.unit.near_rank import NearRank, answers, ask, engine_over
from tests.unit.request_manager.house import Watcher

WORDS = (3, 4, 5, 7, 9)
PROMPT = (3, 4, 5, 3, 7, 3, 9, 4, 7, 5, 9, 3)
BIAS = tuple((token, -100.0) for token in range(VOCAB_SIZE) if token not in WORDS)
NUM_SAMPLES = 2000
OFF = SpeculationOptions(enabled=False)


class PairModel:
    """A draft model that looks at one token, with the ranker and the growth of the real ones.

    Args:
        place: among several draft models.
    """

    def __init__(self, place: int = 0) -> None:
        self.name = f"ssm-{place}"
        noise = NoiseSource(VOCAB_SIZE)
        self._ranker = CandidateRanker(torch.arange(VOCAB_SIZE), VOCAB_SIZE, noise, place)
        generator = torch.Generator().manual_seed(8 + place)
        self._table = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=generator)

    async def draft(self, tasks: Sequence[DraftTask]) -> Mapping[int, Draft]:
        return {task.request_id: self._draft(task) for task in tasks}

    def forget(self, request_id: int) -> None:
        """Nothing is kept."""

    def chances(self, token: int) -> np.ndarray:
        """[vocab] what it draws from after a token, for the requests here."""
        logits = self._table[token].clone()
        for biased, bias in BIAS:
            logits[biased] += bias
        return torch.softmax(logits / 2.0, -1).numpy()

    def _draft(self, task: DraftTask) -> Draft:
        rules = DrawRules(task.sampling, task.prompt_len, verification=task.verification)
        growth = Growth(BestFirst(2), 6, 3, by_level=rules.weighs_draws)
        while growth.frontier:
            position = len(task.token_ids) + growth.depth
            parents = [Parent(rules, position, growth.num_children) for _ in growth.frontier]
            last = [
                task.token_ids[-1] if node == CONTEXT else growth.token_ids[node]
                for node in growth.frontier
            ]
            families = self._ranker.families(parents, self._table[last])
            growth.add([one.children for one in families], [one.draws for one in families])
        return Draft(*growth.result())


@asynccontextmanager
async def serving(rule: Rule, models: Sequence[PairModel] = (), rows: list[Row] | None = None):
    """With one draft model, or these; `rows` is given what the rank is sent."""
    loaded = LoadedModel(
        wrap(tiny_model("llama-yarn")), torch.float64, torch.device("cpu"), 256, 0, "none"
    )
    sent = [] if rows is None else rows
    llm = NearRank(Rank(loaded, "tiny", 1200, 4), lambda message: sent.extend(message.rows))
    async with engine_over(
        llm,
        Watcher(),
        max_batch_tokens=512,
        drafters=[*(models or [PairModel()]), PromptLookup()],
        max_depth=3,
        verification=rule,
    ) as engine:
        yield engine


def asked(seed: int, max_tokens: int = 3, temperature: float = 2.0, **more):
    sampling = SamplingParams(temperature=temperature, seed=seed, logit_bias=BIAS)
    return ask(PROMPT, max_tokens, sampling=sampling, **more)


async def sampled(rule: Rule, models: Sequence[PairModel] = (), rows: list[Row] | None = None):
    """The events of all seeds."""
    async with serving(rule, models, rows) as engine:
        return await answers(engine, [asked(seed) for seed in range(NUM_SAMPLES)])


@cache
def exact_pairs() -> np.ndarray:
    """[word, word] the LLM's probability of the second and third output token."""
    model = tiny_model("llama-yarn")

    def next_word(tokens: Sequence[int]) -> np.ndarray:
        with torch.inference_mode():
            logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, -1, list(WORDS)]
        return torch.softmax(logits / 2.0, -1).numpy()

    first = next_word(())
    return sum(
        chance
        * next_word((word,))[:, np.newaxis]
        * np.array([next_word((word, second)) for second in WORDS])
        for chance, word in zip(first, WORDS, strict=True)
    )


def p_value(events) -> float:
    counts = np.zeros((len(WORDS),) * 2)
    for event in events:
        counts[WORDS.index(event.token_ids[1]), WORDS.index(event.token_ids[2])] += 1
    return float(stats.chisquare(counts.ravel(), exact_pairs().ravel() * len(events)).pvalue)


def num_accepted(events) -> int:
    return sum(event.stats.num_accepted_draft_tokens for event in events)


@pytest.mark.parametrize("rule", [Rule.MSS, Rule.SPECTR])
async def test_consecutive_tokens_are_drawn_as_often_as_due(rule: Rule) -> None:
    events = await sampled(rule)
    assert p_value(events) > 1e-3
    assert num_accepted(events) > NUM_SAMPLES // 3


@pytest.mark.parametrize("rule", [Rule.MSS, Rule.SPECTR])
async def test_drafts_of_two_models_are_tried_one_after_the_other(rule: Rule) -> None:
    models, rows = [PairModel(0), PairModel(1)], []
    events = await sampled(rule, models, rows)
    assert p_value(events) > 1e-3
    assert num_accepted(events) > NUM_SAMPLES // 3
    weighed = [row for row in rows if row.draws]
    assert len(weighed) > NUM_SAMPLES // 3
    for row in weighed:
        drawn = [one.draws for one in row.draws if one.node == 0]
        for model, draws in zip(models, drawn, strict=True):
            chances = model.chances(row.tree.token_ids[0])[list(draws.support_ids)]
            assert draws.probabilities == pytest.approx(chances / chances.sum(), abs=1e-5)


async def test_typical_changes_the_distribution() -> None:
    assert p_value(await sampled(Rule.TYPICAL)) < 1e-6


async def test_the_best_words_in_the_place_of_draws_are_found_out(monkeypatch) -> None:
    monkeypatch.setattr(
        draft_draws, "without_replacement", lambda weights, _, count: np.argsort(-weights)[:count]
    )
    assert p_value(await sampled(Rule.MSS)) < 1e-6


async def test_coins_that_are_the_drafts_noise_are_found_out(monkeypatch) -> None:
    """Independent noises must not be one."""
    noise = NoiseSource(4)

    def flipped(seed, position, stream, count):
        gumbel = noise.get(seed, position, draft_stream(0))[3].item()
        return np.full(count, np.exp(-np.exp(-gumbel)))

    monkeypatch.setattr(ruled_draws, "uniforms", flipped)
    assert p_value(await sampled(Rule.MSS)) < 1e-6


async def test_naive_gives_the_text_of_plain_decoding_and_so_does_greedy_under_every_rule() -> None:
    for rule in Rule:
        async with serving(rule) as engine:
            temperature = 2.0 if rule is Rule.NAIVE else 0.0
            requests = [asked(seed, 30, temperature) for seed in range(8)]
            on = await answers(engine, requests)
            off = await answers(engine, [replace(one, speculation=OFF) for one in requests])
        assert [one.token_ids for one in on] == [one.token_ids for one in off]
        assert num_accepted(on) > 20


@pytest.mark.parametrize("rule", Rule)
async def test_a_seed_gives_one_text_where_drafts_are_the_same(rule: Rule) -> None:
    """On a server that has learnt nothing yet."""
    texts = []
    for _ in range(2):
        async with serving(rule) as engine:
            texts.append([event.token_ids for event in await answers(engine, [asked(5, 60)])])
    assert texts[0] == texts[1]


async def test_a_request_chooses_its_own_rule() -> None:
    """Side by side in one batch; each as on a server that has its rule."""
    async with serving(Rule.COUPLED) as engine:
        wishes = [SpeculationOptions(verification=rule.value) for rule in Rule]
        beside = await answers(engine, [asked(5, 20, speculation=wish) for wish in wishes])
    texts = []
    for rule in Rule:
        async with serving(rule) as engine:
            texts += [event.token_ids for event in await answers(engine, [asked(5, 20)])]
    assert [event.token_ids for event in beside] == texts


async def test_log_probabilities_are_of_the_token_that_came_of_the_rule() -> None:
    async with serving(Rule.MSS) as engine:
        (event,) = await answers(engine, [asked(3, 20, num_logprobs=0)])
    assert [entry.token_id for entry in event.logprobs] == list(event.token_ids)
    with torch.inference_mode():
        logits = tiny_model("llama-yarn")(torch.tensor([[*PROMPT, *event.token_ids]])).logits[0]
    exact = torch.log_softmax(logits, -1)[len(PROMPT) - 1 : -1]
    for row, entry in zip(exact, event.logprobs, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-6)
