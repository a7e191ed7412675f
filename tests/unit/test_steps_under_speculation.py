"""Whatever a request asks of the logits, its text is the same with speculation on and off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.request_manager.generation import SpeculationOptions, StopConditions
from actors.sampling import SamplingParams, derived_seed
from tests.unit.near_rank import NO_EOS, PROMPTS, answers, ask, engine_on

OFF = SpeculationOptions(enabled=False)
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.3, seed=11)
BIAS = tuple((token, 1.5 - token / 20) for token in range(0, 60, 3))
STEPS = {
    "presence": {"presence_penalty": 0.3},
    "frequency": {"frequency_penalty": 0.05},
    "reward": {"presence_penalty": -0.5, "frequency_penalty": -0.05},
    "repetition": {"repetition_penalty": 1.02},
    "bias": {"logit_bias": BIAS},
    "ban": {"logit_bias": ((3, -100.0), (4, -100.0), (7, -100.0))},
    "all": {
        "presence_penalty": 0.1,
        "frequency_penalty": 0.02,
        "repetition_penalty": 0.98,
        "logit_bias": BIAS,
    },
}


@pytest.mark.parametrize("base", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
async def test_text_and_logprobs_are_the_same_on_and_off(base, steps):
    """Three choices each, with so few blocks that requests are preempted and prefilled again."""
    samplings = [
        replace(base, seed=derived_seed(base.seed, choice), **steps)
        for choice in range(1 if base is GREEDY else 3)
    ]
    requests = [ask(p, 30, sampling=s, num_logprobs=2) for p in PROMPTS for s in samplings]
    async with engine_on(num_blocks=40) as engine:
        on = await answers(engine, requests)
        off = await answers(engine, [replace(request, speculation=OFF) for request in requests])
        without = await answers(
            engine, [replace(r, sampling=replace(base, seed=r.sampling.seed)) for r in requests]
        )
    for one, other in zip(on, off, strict=True):
        assert one.token_ids == other.token_ids
        for scored, again in zip(one.logprobs, other.logprobs, strict=True):
            assert scored.token_id == again.token_id
            assert scored.top.token_ids == again.top.token_ids
            assert scored.logprob == pytest.approx(again.logprob, abs=1e-9)
    assert sum(answer.stats.num_accepted_draft_tokens for answer in on) > 5
    assert [answer.token_ids for answer in on] != [answer.token_ids for answer in without]


@pytest.mark.parametrize("base", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_early_ends_are_banned_in_trees_too(base):
    """EOS is what the model says most, so it stands in the drafts, early and late."""
    async with engine_on() as engine:
        free = await answers(engine, [ask(prompt, 30, sampling=base) for prompt in PROMPTS])
    eos_ids = frozenset(answer.token_ids[3] for answer in free)
    sampling = replace(base, min_tokens=12)
    async with engine_on(vocabulary=replace(NO_EOS, eos_ids=eos_ids)) as engine:
        ended = await answers(engine, [ask(prompt, 30, sampling=base) for prompt in PROMPTS])
        requests = [ask(prompt, 30, sampling=sampling) for prompt in PROMPTS]
        on = await answers(engine, requests)
        off = await answers(engine, [replace(request, speculation=OFF) for request in requests])
    assert all(len(answer.token_ids) <= 4 for answer in ended)
    for one, other in zip(on, off, strict=True):
        assert one.token_ids == other.token_ids
        assert len(one.token_ids) >= 12
        assert not eos_ids & set(one.token_ids[:12])
    assert any(len(answer.token_ids) < 30 for answer in on)


@pytest.mark.parametrize("cut", [1, 7, 19])
async def test_a_request_resumed_goes_on_as_it_would_have(cut):
    """Penalties count what was delivered before a failure."""
    sampling = replace(SEEDED, **STEPS["all"])
    async with engine_on() as engine:
        whole = await answers(engine, [ask(prompt, 30, sampling=sampling) for prompt in PROMPTS])
        resumed = await answers(
            engine,
            [
                ask(prompt, 30, sampling=sampling, emitted_ids=answer.token_ids[:cut])
                for prompt, answer in zip(PROMPTS, whole, strict=True)
            ],
        )
    assert [answer.token_ids[cut:] for answer in whole] == [one.token_ids for one in resumed]


async def test_stop_token_ids_are_banned_early_too():
    async with engine_on() as engine:
        [free] = await answers(engine, [ask(PROMPTS[0], 30)])
        stop = StopConditions(30, stop_token_ids=(free.token_ids[0],))
        [early] = await answers(engine, [replace(ask(PROMPTS[0]), stop=stop)])
        late = replace(ask(PROMPTS[0], sampling=replace(GREEDY, min_tokens=5)), stop=stop)
        [later] = await answers(engine, [late])
    assert len(early.token_ids) == 1
    assert len(later.token_ids) > 5
    assert free.token_ids[0] not in later.token_ids[:5]
