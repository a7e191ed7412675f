"""Outputs that must follow a grammar: always valid, and the same with speculation on and off."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from concurrent import futures
from dataclasses import replace

import pytest

from actors.errors import InputError
from actors.grammar import (
    Grammars,
    grammar_of_choice,
    grammar_of_json,
    grammar_of_regex,
    grammar_of_schema,
)
from actors.llm import rank
from actors.request_manager.budget import Acceptance, FixedBudget
from actors.request_manager.drafters.grammar import GrammarDrafter
from actors.request_manager.drafters.prompt_lookup import PromptLookup
from actors.request_manager.generation import FinishReason, SpeculationOptions
from actors.request_manager.outbox import Outbox
from actors.sampling import SamplingParams
from actors.vocabulary import Vocabulary
from tests.unit.llm.tiny_models import VOCAB_SIZE
from tests.unit.near_rank import answers, ask, engine_on

OFF = SpeculationOptions(enabled=False)
PIECES = [
    *'abcdefghijklmnopqrstu{}[]":,-.0123456789 ',
    *('{"', '":', '",', "true", "name", "ab", "12", '": "'),
]
EOS = len(PIECES)
TEXTS = tuple(piece.encode() for piece in PIECES)
VOCABULARY = Vocabulary((*TEXTS, b""), (*PIECES, "<end>"), frozenset({EOS}))
"""Fewer tokens than the tiny model's head has rows."""

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "bad": {"type": "array", "items": {"type": "integer", "maximum": 999}, "maxItems": 4},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "bad"],
    "additionalProperties": False,
}
PROMPTS = ['{"name": "abcabc", "bad": [12, 12, 12]}', "ab ab ab 12 12", '{"bad": [1, 1, 1'] * 2
STEPS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, seed=5),
    SamplingParams(temperature=1.0, seed=6, top_p=0.9, top_k=30, presence_penalty=0.1),
    SamplingParams(temperature=0.3, seed=7, repetition_penalty=0.95, logit_bias=((3, 1.5),)),
]


def encode(text: str) -> list[int]:
    """Any split into known pieces will do as a prompt."""
    return [PIECES.index(character) for character in text]


def decode(token_ids) -> str:
    return VOCABULARY.text_bytes(token_ids).decode()


def asked(grammar: str, sampling: SamplingParams, max_tokens: int = 100, **more):
    return [
        ask(encode(prompt), max_tokens, sampling=sampling, grammar=grammar, **more)
        for prompt in PROMPTS[:3]
    ]


async def on_and_off(requests, num_blocks=64, drafters=()):
    """The answers, once each was found to be the same with speculation and without."""
    async with engine_on(num_blocks, vocabulary=VOCABULARY, drafters=drafters) as engine:
        on = await answers(engine, requests)
        off = await answers(engine, [replace(request, speculation=OFF) for request in requests])
    for one, other in zip(on, off, strict=True):
        assert decode(one.token_ids) == decode(other.token_ids)
        assert one.token_ids == other.token_ids
    return on


@pytest.mark.parametrize("num_blocks", [128, 40])
@pytest.mark.parametrize("sampling", STEPS)
async def test_answers_fit_the_schema(sampling, num_blocks):
    """Alone in the cache, and with so few blocks that requests are preempted."""
    grammar = grammar_of_schema(SCHEMA, "schema")
    found = await on_and_off(asked(grammar, sampling), num_blocks)
    ended = [answer for answer in found if answer.finish_reason is FinishReason.STOP]
    assert ended
    for answer in ended:
        value = json.loads(decode(answer.token_ids))
        assert set(value) <= {"name", "bad", "ok"}
        assert isinstance(value["name"], str)
        assert all(isinstance(entry, int) for entry in value["bad"])
        assert answer.token_ids[-1] == EOS


@pytest.mark.parametrize("sampling", STEPS)
@pytest.mark.parametrize("regex", [r"[a-c]{2,8}(-[0-9]{2}){1,3}", r"(ab|12)+\."])
async def test_answers_match_the_regex(sampling, regex):
    for answer in await on_and_off(asked(grammar_of_regex(regex, "regex"), sampling)):
        if answer.finish_reason is FinishReason.STOP:
            assert re.fullmatch(regex, decode(answer.token_ids))
        else:
            assert len(answer.token_ids) == 100


@pytest.mark.parametrize("sampling", STEPS)
async def test_answers_are_among_the_choices(sampling):
    choices = ["abcabcabc", "abcabcab", "12,12,12", 'q"q']
    found = await on_and_off(asked(grammar_of_choice(choices, "choice"), sampling))
    for answer in found:
        assert answer.finish_reason is FinishReason.STOP
        assert decode(answer.token_ids) in choices


async def test_drafts_may_hold_the_end():
    prompt = [*encode("abcab"), EOS] * 3 + encode("ab")
    requests = [
        ask(prompt, 30, sampling=sampling, grammar=grammar_of_regex(regex, "regex"))
        for sampling in STEPS
        for regex in ("abcab", "(ab|c)+")
    ]
    for answer in await on_and_off(requests):
        assert answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert answer.token_ids.count(EOS) == (answer.finish_reason is FinishReason.STOP)


async def test_some_drafts_are_accepted_and_forbidden_ones_are_not():
    grammar = grammar_of_json("response_format")
    found = await on_and_off(asked(grammar, STEPS[0], 60))
    assert sum(answer.stats.num_draft_tokens for answer in found) > 20
    assert sum(answer.stats.num_accepted_draft_tokens for answer in found) > 5
    for answer in found:
        if answer.finish_reason is FinishReason.STOP:
            assert isinstance(json.loads(decode(answer.token_ids)), dict)


class _Grammars(GrammarDrafter):
    """One that has its grammars at once, so that a short output sees its drafts."""

    async def draft(self, tasks):
        await super().draft(tasks)
        starts = [walk.start for walk in self._walks.values()]
        await asyncio.to_thread(futures.wait, starts, 20.0)
        return await super().draft(tasks)


@pytest.mark.parametrize("num_blocks", [128, 40])
@pytest.mark.parametrize("sampling", STEPS)
@pytest.mark.parametrize("with_lookup", [False, True])
async def test_drafts_of_the_grammar_change_no_text(sampling, num_blocks, with_lookup):
    """Alone in the cache, and with so few blocks that requests are preempted."""
    grammars = _Grammars(VOCABULARY, encode)
    drafters = [grammars, *([PromptLookup()] if with_lookup else [])]
    requests = asked(grammar_of_schema(SCHEMA, "schema"), sampling)
    found = await on_and_off(requests, num_blocks, drafters=drafters)
    assert sum(answer.stats.num_accepted_draft_tokens for answer in found) > 5
    assert not grammars._walks


@pytest.mark.parametrize(
    "wish", [OFF, SpeculationOptions(drafters=("prompt_lookup",)), SpeculationOptions(max_nodes=0)]
)
async def test_drafts_of_the_grammar_can_be_switched_off(wish):
    grammars = _Grammars(VOCABULARY, encode)
    requests = asked(grammar_of_schema(SCHEMA, "schema"), STEPS[0], 20, speculation=wish)
    async with engine_on(vocabulary=VOCABULARY, drafters=[grammars, PromptLookup()]) as engine:
        grammars.draft = None
        assert all(answer.token_ids for answer in await answers(engine, requests))


async def test_drafts_of_the_grammar_are_not_on_trial(monkeypatch):
    """Other drafters are left out for a while now and then, to see what they are worth."""
    monkeypatch.setattr(FixedBudget, "considers", lambda self, *args: False)
    drafters = [_Grammars(VOCABULARY, encode)]
    requests = asked(grammar_of_schema(SCHEMA, "schema"), STEPS[0])
    found = await on_and_off(requests, drafters=drafters)
    assert sum(answer.stats.num_accepted_draft_tokens for answer in found) > 5


async def test_requests_without_a_grammar_are_not_asked_about():
    grammars = _Grammars(VOCABULARY, encode)
    async with engine_on(vocabulary=VOCABULARY, drafters=[grammars]) as engine:
        grammars.draft = None
        [answer] = await answers(engine, [ask(encode("ab"), 5)])
    assert len(answer.token_ids) == 5


@pytest.mark.parametrize("cut", [1, 6, 15])
async def test_a_request_resumed_goes_on_as_it_would_have(cut):
    requests = asked(grammar_of_schema(SCHEMA, "schema"), STEPS[1])
    async with engine_on(vocabulary=VOCABULARY) as engine:
        whole = await answers(engine, requests)
        resumed = await answers(
            engine,
            [
                replace(request, emitted_ids=answer.token_ids[:cut])
                for request, answer in zip(requests, whole, strict=True)
            ],
        )
    assert [answer.token_ids[cut:] for answer in whole] == [one.token_ids for one in resumed]


async def test_an_output_that_left_its_grammar_ends_its_own_request_alone():
    grammar = grammar_of_choice(["abc"], "choice")
    good, bad = asked(grammar, STEPS[0])[:2]
    bad = replace(bad, emitted_ids=tuple(encode("12")), grammar_param="guided_choice")
    async with engine_on(vocabulary=VOCABULARY) as engine:
        with pytest.raises(InputError) as raised:
            await answers(engine, [bad])
        [answer] = await answers(engine, [good])
    assert raised.value.param == "guided_choice"
    assert decode(answer.token_ids) == "abc"


@pytest.mark.parametrize("name", ["min_tokens", "ignore_eos"])
async def test_what_would_outlive_the_grammar_is_refused(name):
    request = asked(grammar_of_choice(["abc"], "choice"), STEPS[0])[0]
    if name == "min_tokens":
        request = replace(request, sampling=SamplingParams(min_tokens=5))
    else:
        request = replace(request, stop=replace(request.stop, ignore_eos=True))
    async with engine_on(vocabulary=VOCABULARY) as engine:
        with pytest.raises(InputError) as raised:
            await answers(engine, [request])
    assert raised.value.param == name
    assert len(PIECES) < VOCAB_SIZE - 1


async def test_others_go_on_while_a_grammar_is_compiled(monkeypatch):
    release = threading.Event()
    compile_now = Grammars.compile
    slow, quick = (grammar_of_regex(regex, "regex") for regex in ("[ab]{9}", "[cd]{9}"))

    def compile_late(self, source):
        if source == slow:
            release.wait()
        return compile_now(self, source)

    waiting, known, plain = (
        ask(encode("ababab"), 12, grammar=grammar) for grammar in (slow, quick, "")
    )
    async with engine_on(vocabulary=VOCABULARY) as engine:
        [alone] = await answers(engine, [waiting])
        await answers(engine, [known])
    monkeypatch.setattr(Grammars, "compile", compile_late)
    async with engine_on(vocabulary=VOCABULARY) as engine:
        held_up = asyncio.create_task(answers(engine, [waiting]))
        ended = await answers(engine, [plain])
        assert len(ended[0].token_ids) == 12
        assert not held_up.done()
        release.set()
        [late] = await held_up
        [other] = await answers(engine, [known])
    assert late.token_ids == alone.token_ids
    assert re.fullmatch("[cd]{9}", decode(other.token_ids))


async def test_a_request_may_be_cancelled_while_its_grammar_is_compiled(monkeypatch):
    release = threading.Event()
    asked_for = ask(encode("ab"), 5, grammar=grammar_of_regex("ab", "regex"))
    monkeypatch.setattr(Grammars, "compile", lambda self, source: release.wait())
    outbox = Outbox()
    async with engine_on(vocabulary=VOCABULARY) as engine:
        [request] = engine.submit([(asked_for, outbox.sink("r"))])
        await answers(engine, [ask(encode("ab"), 5)])
        engine.cancel(request)
        news = await outbox.take()
        await answers(engine, [ask(encode("ba"), 5)])
        assert engine.is_idle
        release.set()
    assert news["r"].event.finish_reason is FinishReason.ABORT


@pytest.mark.parametrize("num_logprobs", [None, 0, 3])
async def test_forbidden_drafts_are_not_run_and_learnt_nothing_from(monkeypatch, num_logprobs):
    """What the LLM runs are the nodes that the grammar allows, and the root."""
    run: list[tuple[int, int]] = []
    observed: list[bool] = []
    build, observe = rank.build_batch, Acceptance.observe

    def build_batch(rows, *others):
        run.extend((row.request_id, len(row.tree)) for row in rows)
        return build(rows, *others)

    monkeypatch.setattr(rank, "build_batch", build_batch)
    monkeypatch.setattr(
        Acceptance, "observe", lambda *args: observed.append(args[-1]) or observe(*args)
    )
    prompt = [PIECES.index(piece) for mark in ',:-}"' for piece in ("ab", mark, mark)]
    grammar = grammar_of_regex("(ab[0-9])+", "regex")
    asked_for = ask(prompt, 60, grammar=grammar, num_logprobs=num_logprobs)
    [on] = await on_and_off([asked_for])
    assert on.stats.num_draft_tokens > on.stats.num_accepted_draft_tokens + 10
    num_run = sum(size for _, size in run[: 1 + on.stats.num_llm_steps]) - len(asked_for.prompt_ids)
    assert num_run < on.stats.num_llm_steps + on.stats.num_draft_tokens
    assert len(observed) < on.stats.num_draft_tokens
    async with engine_on(vocabulary=VOCABULARY) as engine:
        [off] = await answers(engine, [replace(asked_for, speculation=OFF)])
    for one, other in zip(on.logprobs, off.logprobs, strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert one.top.token_ids == other.top.token_ids
    assert len(on.logprobs) == (0 if num_logprobs is None else len(on.token_ids))
