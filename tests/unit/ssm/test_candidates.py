"""Children and their scores: the LLM's logit steps, the LLM's noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats

from actors.logit_steps import Occurrences, adjusted, kept_ids
from actors.noise import NoiseSource
from actors.sampling import SamplingParams
from actors.ssm.candidates import CandidateRanker, DrawRules, Parent
from actors.verification import Rule

VOCAB = 400
CUT = torch.arange(0, VOCAB, 2)
Children = Sequence[tuple[int, float]]
LOGITS = torch.randn(len(CUT), generator=torch.Generator().manual_seed(1)) * 3


def children(
    sampling: SamplingParams, count: int = 5, position: int = 9, rules: DrawRules | None = None
) -> Children:
    ranker = CandidateRanker(CUT, VOCAB, NoiseSource(VOCAB, CUT.numpy()))
    parent = Parent(rules or DrawRules(sampling), position, count)
    return ranker.families([parent], LOGITS.clone()[None])[0].children


def whole(logits: torch.Tensor = LOGITS) -> np.ndarray:
    """The same logits over the LLM's vocabulary; what is not in the cut cannot be drawn."""
    everywhere = np.full(VOCAB, -np.inf, np.float32)
    everywhere[CUT.numpy()] = logits.numpy()
    return everywhere


def test_greedy_children_are_the_best_by_probability() -> None:
    found = children(SamplingParams(temperature=0.0))
    probabilities, places = LOGITS.softmax(-1).topk(5)
    assert [token for token, _ in found] == CUT[places].tolist()
    assert [score for _, score in found] == pytest.approx(probabilities.tolist())


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=1.0, seed=5),
        SamplingParams(temperature=0.6, seed=6),
        SamplingParams(temperature=1.3, top_k=7, seed=7),
        SamplingParams(temperature=1.0, top_p=0.8, seed=8),
        SamplingParams(temperature=1.0, min_p=0.05, seed=9),
        SamplingParams(temperature=0.9, top_k=30, top_p=0.9, min_p=0.01, seed=10),
    ],
)
def test_the_first_child_is_what_an_llm_with_these_logits_draws(sampling: SamplingParams) -> None:
    for position in range(20):
        kept = kept_ids(whole(), sampling)
        noise = NoiseSource(VOCAB).get(sampling.seed, position)[kept]
        perturbed = whole()[kept] + np.float32(sampling.temperature) * noise
        order = np.argsort(-perturbed)[:5]
        found = children(sampling, position=position)
        assert [token for token, _ in found] == kept[order].tolist()
        weights = np.exp(perturbed - perturbed.max())
        assert [score for _, score in found] == pytest.approx(
            (weights / weights.sum())[order], rel=1e-5
        )


def test_what_the_steps_cut_off_is_no_child() -> None:
    assert len(children(SamplingParams(temperature=1.0, top_k=3, seed=1))) == 3
    assert len(children(SamplingParams(temperature=1.0, top_k=1, seed=1))) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_banned_early_is_no_child_until_then(temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, min_tokens=4, seed=3)
    best = children(sampling, count=2)[0][0]
    rules = DrawRules(sampling, prompt_len=10, banned_early=(best, 1))
    assert best not in [token for token, _ in children(sampling, 8, 13, rules)]
    free = children(sampling, 8, 14, rules)
    assert free == children(sampling, 8, 14)


@pytest.mark.parametrize("path", [(), (2, 6), (6, 6, 100)])
def test_bias_and_penalties_are_the_llms(path: tuple[int, ...]) -> None:
    text = [2, 2, 6, 100, 102, 9]
    occurrences = Occurrences.none(VOCAB)
    occurrences.add(0, text, 3)
    sampling = SamplingParams(
        temperature=0.0,
        repetition_penalty=1.5,
        frequency_penalty=0.6,
        presence_penalty=0.4,
        logit_bias=((2, 8.0), (6, 9.0), (7, 50.0), (100, 8.5)),
    )
    rules = DrawRules(sampling, 3, occurrences=occurrences)
    ranker = CandidateRanker(CUT, VOCAB, NoiseSource(VOCAB, CUT.numpy()))
    parent = Parent(rules, len(text) + len(path), 5, path)
    found = ranker.families([parent], LOGITS.clone()[None])[0].children
    after = Occurrences.none(VOCAB)
    after.add(0, [*text, *path], 3)
    expected = torch.from_numpy(adjusted(whole(), sampling, after)).softmax(-1).topk(5)
    assert [token for token, _ in found] == expected.indices.tolist()
    assert [score for _, score in found] == pytest.approx(expected.values.tolist(), rel=1e-4)
    assert occurrences.in_text.sum() == len(text)


def test_parents_side_by_side_get_what_each_would_alone() -> None:
    rules = [DrawRules(SamplingParams(temperature=t, seed=s)) for t, s in [(0, 1), (1, 2), (1, 3)]]
    parents = [Parent(rule, 5, count) for rule, count in zip(rules, [3, 5, 1], strict=True)]
    ranker = CandidateRanker(CUT, VOCAB, NoiseSource(VOCAB, CUT.numpy()))
    logits = torch.stack([LOGITS, LOGITS.flip(0), LOGITS * 0.5])
    together = ranker.families(parents, logits.clone())
    alone = [ranker.families([parents[i]], logits[i : i + 1].clone())[0] for i in range(3)]
    assert together == alone
    assert [len(family.children) for family in together] == [3, 5, 1]


@pytest.mark.parametrize("rule", [Rule.NAIVE, Rule.TYPICAL])
def test_where_draws_do_not_matter_children_are_the_best_by_probability(rule: Rule) -> None:
    rules = DrawRules(SamplingParams(temperature=0.5, seed=3), verification=rule)
    probabilities, places = (LOGITS / 0.5).softmax(-1).topk(5)
    found = children(rules.sampling, rules=rules)
    assert [token for token, _ in found] == CUT[places].tolist()
    assert [score for _, score in found] == pytest.approx(probabilities.tolist(), rel=1e-4)


@pytest.mark.parametrize("rule", [Rule.MSS, Rule.SPECTR])
def test_weighed_children_are_the_draws(rule: Rule) -> None:
    sampling = SamplingParams(temperature=0.7, top_p=0.9, seed=3)
    ranker = CandidateRanker(CUT, VOCAB, NoiseSource(VOCAB, CUT.numpy()))
    drawn = Parent(DrawRules(sampling, verification=rule), 9, 6)
    plain = Parent(DrawRules(sampling), 9, 4)
    other, family = ranker.families([plain, drawn], LOGITS.repeat(2, 1))
    assert other.draws is None
    assert other.children == children(sampling, 4)
    draws = family.draws
    assert len(draws.token_ids) == 6
    assert {token for token, _ in family.children} == set(draws.token_ids)
    kept = kept_ids(whole(), sampling)
    exact = np.exp(whole()[kept].astype(np.float64) / 0.7)
    due = dict(zip(kept.tolist(), exact / exact.sum(), strict=True))
    assert set(draws.support_ids) <= set(kept.tolist())
    for token, probability in zip(draws.support_ids, draws.probabilities, strict=True):
        assert probability == pytest.approx(due[token], rel=1e-5) or len(kept) > 64
    assert dict(family.children) == {
        token: draws.probabilities[draws.places[token]] for token in draws.token_ids
    }


@pytest.mark.parametrize("rule", [Rule.MSS, Rule.SPECTR])
def test_draws_come_as_often_as_their_weights_say(rule: Rule) -> None:
    """First and second draws of many positions."""
    logits = torch.full((len(CUT),), -torch.inf)
    logits[:3] = torch.log(torch.tensor([0.6, 0.3, 0.1]))
    ranker = CandidateRanker(CUT, VOCAB, NoiseSource(VOCAB, CUT.numpy()))
    rules = DrawRules(SamplingParams(temperature=1.0, seed=4), verification=rule)
    counts = np.zeros((3, 3))
    for position in range(3000):
        (family,) = ranker.families([Parent(rules, position, 2)], logits[None].clone())
        counts[tuple(CUT.tolist().index(token) for token in family.draws.token_ids)] += 1
    q = np.array([0.6, 0.3, 0.1])
    due = np.outer(q, q)
    if rule is Rule.MSS:
        due = due / (1 - q)[:, np.newaxis]
        np.fill_diagonal(due, 0.0)
    assert counts[due == 0.0].sum() == 0
    assert stats.chisquare(counts[due > 0.0], due[due > 0.0] * 3000).pvalue > 1e-3


def test_weights_are_of_the_most_probable_64() -> None:
    ranker = CandidateRanker(CUT, VOCAB, NoiseSource(VOCAB, CUT.numpy()))
    rules = DrawRules(SamplingParams(temperature=1.0, seed=4), verification=Rule.MSS)
    (family,) = ranker.families([Parent(rules, 3, 2)], LOGITS.clone()[None])
    assert set(family.draws.support_ids) == set(CUT[LOGITS.topk(64).indices].tolist())


def test_greedy_drafts_are_not_weighed() -> None:
    greedy = SamplingParams(temperature=0.0)
    rules = DrawRules(greedy, verification=Rule.MSS)
    assert children(greedy, rules=rules) == children(greedy)
