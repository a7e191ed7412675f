"""The loop, against a stand-in that keeps KV slot by slot: what comes out is the script's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from actors.errors import InputError, OverloadedError, UnavailableError
from actors.messages import Row, RowResult, StepMessage, StepReply
from actors.request_manager.config import SchedulerConfig
from actors.request_manager.drafter_worth import StepOutcome
from actors.request_manager.generation import FinishReason, GenerationEvent, SpeculationOptions
from actors.request_manager.guessing import Guessing
from actors.request_manager.ports import Drafter
from actors.request_manager.scripted_llm import ScriptedLLM
from actors.sampling import SamplingParams
from tests.unit.request_manager.house import (
    BrokenDrafter,
    House,
    LateDrafter,
    OracleDrafter,
    WrongDrafter,
    ask,
    collect,
    expected,
    script,
)


@pytest.mark.parametrize("num_groups", [1, 3])
@pytest.mark.parametrize(
    "drafters",
    [(), (OracleDrafter(),), (OracleDrafter(1), BrokenDrafter(), WrongDrafter()), (LateDrafter(),)],
    ids=["none", "oracle", "mixed", "late"],
)
async def test_output_is_the_llms_own(drafters: Sequence[Drafter], num_groups: int) -> None:
    house = House(drafters, num_groups=num_groups)
    prompts = [[seed % 5, 2, seed % 3] * (seed % 7 + 1) for seed in range(9)]
    async with house as engine:
        answers = await asyncio.gather(
            *(
                collect(engine, ask(prompt, 30, str(seed), sampling=SamplingParams(0.0, seed=seed)))
                for seed, prompt in enumerate(prompts)
            )
        )
    for seed, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        assert answer.token_ids == expected(prompt, 30, seed)
        assert answer.finish_reason is FinishReason.LENGTH
    assert all(len(set(message.rows)) == len(message.rows) for message in house.llm.messages)


async def test_the_budget_learns_from_every_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are those of the step, whatever has been committed by the time they are counted."""
    outcomes: list[StepOutcome] = []
    learn = Guessing.learn

    def watched(self, guesses, outcome, *more):
        outcomes.append(outcome)
        learn(self, guesses, outcome, *more)

    monkeypatch.setattr(Guessing, "learn", watched)
    house = House((OracleDrafter(),))
    async with house as engine:
        await asyncio.gather(*(collect(engine, ask([1, 2, 3, 4], 40, str(n))) for n in range(3)))
        assert engine.is_idle
    decodes = [outcome for outcome in outcomes if outcome.only_decodes]
    assert len(decodes) >= len(outcomes) - 4 > 6  # all but prefills and releases
    assert {outcome.num_draws for outcome in decodes} <= {1, 2, 3}
    assert any(outcome.num_draws == 3 and outcome.answered == {"oracle": 3} for outcome in decodes)


async def test_good_drafts_save_steps_and_are_counted() -> None:
    house = House((OracleDrafter(),))
    async with house as engine:
        answer = await collect(engine, ask(max_tokens=60))
    stats = answer.stats
    assert stats is not None
    assert stats.num_llm_steps < 40
    assert stats.num_llm_steps + stats.num_accepted_draft_tokens == 59
    assert sum(stats.acceptance_histogram) == stats.num_spec_steps
    weighted = sum(k * count for k, count in enumerate(stats.acceptance_histogram))
    assert weighted == stats.num_accepted_draft_tokens


async def test_long_prompts_go_in_chunks_beside_decodes() -> None:
    house = House(scheduling=SchedulerConfig(max_batch_tokens=16, kv_block_tokens=4))
    async with house as engine:
        short = asyncio.create_task(collect(engine, ask([1], 40)))
        await asyncio.sleep(0)
        long = await collect(engine, ask([1, 2, 3, 4] * 20, 5, "long"))
        await short
    assert long.token_ids == expected([1, 2, 3, 4] * 20, 5)
    sizes = [message.num_tokens for message in house.llm.messages]
    assert max(sizes) <= 16
    assert any(len(message.rows) == 2 for message in house.llm.messages)


async def test_preemption_gives_the_same_text() -> None:
    """12 blocks of 4 hold 48 tokens; four requests of 33 tokens want 132."""
    house = House((OracleDrafter(),), num_blocks=12)
    async with house as engine:
        answers = await asyncio.gather(
            *(collect(engine, ask([seed, 1, 2], 30, str(seed))) for seed in range(4))
        )
    for seed, answer in enumerate(answers):
        assert answer.token_ids == expected([seed, 1, 2], 30)
    new = [new.request_id for message in house.llm.messages for new in message.new]
    assert len(new) > len(set(new)), "nobody was preempted: the test shows nothing"


async def test_cancel_in_every_phase_frees_everything() -> None:
    for num_events in range(1, 9):
        house = House((OracleDrafter(),))
        async with house as engine:
            stream = engine.generate(ask(max_tokens=400))
            task = asyncio.create_task(anext(stream))
            for _ in range(num_events):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stream.aclose()
        assert house.watcher.finished == [FinishReason.ABORT]
        assert len(house.llm.messages) <= num_events + 3


async def test_cancel_while_a_step_is_in_flight_waits_for_its_result() -> None:
    house = House()
    async with house as engine:
        house.llm.hold = asyncio.Event()
        stream = engine.generate(ask())
        task = asyncio.create_task(anext(stream))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.aclose()
        assert house.llm.held, "blocks are kept until the step is back"
        house.llm.hold.set()
        house.llm.hold = None


async def test_seven_stop_conditions_end_the_output_alike() -> None:
    text = expected([1, 2, 3], 12)
    stop_at = text.index(text[4])
    house = House((OracleDrafter(),))
    async with house as engine:
        answer = await collect(engine, ask(stop={"stop_token_ids": (text[4],)}))
    assert answer.token_ids == text[: stop_at + 1]
    assert answer.finish_reason is FinishReason.STOP
    assert answer.visible_bytes == stop_at


async def test_resumed_request_goes_on_where_it_was() -> None:
    text = expected([1, 2, 3], 20)
    async with House((OracleDrafter(),)) as engine:
        answer = await collect(engine, ask(emitted_ids=text[:7]))
        over = await collect(engine, ask(name="over", emitted_ids=text))
    assert answer.token_ids == text[7:]
    assert answer.visible_bytes == 20
    assert over.token_ids == ()
    assert over.finish_reason is FinishReason.LENGTH


async def test_log_probabilities_belong_to_the_node_that_drew() -> None:
    async with House((OracleDrafter(),)) as engine:
        answer = await collect(engine, ask(num_logprobs=1, max_tokens=25))
        scored = await collect(engine, ask([1, 2, 3] * 10, 0, "echo", prompt_logprobs=1))
    assert [entry.token_id for entry in answer.logprobs] == list(answer.token_ids)
    assert [entry.top.token_ids[0] for entry in answer.logprobs] == list(answer.token_ids)
    assert [entry.token_id for entry in scored.prompt_logprobs] == ([1, 2, 3] * 10)[1:]
    assert scored.token_ids == ()
    assert scored.finish_reason is FinishReason.LENGTH


async def test_speculation_can_be_turned_off_for_a_request() -> None:
    house = House((OracleDrafter(),))
    async with house as engine:
        await collect(engine, ask(speculation=SpeculationOptions(enabled=False)))
        await collect(engine, ask(name="b", speculation=SpeculationOptions(max_nodes=0)))
        await collect(engine, ask(name="c", speculation=SpeculationOptions(drafters=())))
    assert all(record.num_draft_nodes == 0 for record in house.watcher.steps)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (256,)}, "prompt"),
        ({"prompt": (1,) * 512}, "prompt"),
        ({"stop": {"stop_token_ids": (700,)}}, "stop_token_ids"),
        ({"num_logprobs": 99}, "num_logprobs"),
        ({"speculation": SpeculationOptions(verification="hope")}, "speculation.verification"),
        ({"speculation": SpeculationOptions(drafters=("x",))}, "speculation.drafters"),
        ({"speculation": SpeculationOptions(max_nodes=-1)}, "speculation.max_nodes"),
    ],
)
async def test_what_cannot_run_is_refused_by_field(change: dict, param: str) -> None:
    async with House() as engine:
        await collect(engine, ask())
        with pytest.raises(InputError) as refusal:
            await collect(engine, ask(**change))
    assert refusal.value.param == param


async def test_more_than_the_cache_holds_is_refused() -> None:
    house = House(num_blocks=4)
    async with house as engine:
        await collect(engine, ask([1], 10))
        with pytest.raises(InputError) as refusal:
            await collect(engine, ask([1], 16))
    assert refusal.value.param == "max_tokens"


async def test_a_full_queue_refuses_and_loses_nothing() -> None:
    limits = SchedulerConfig(max_batch_tokens=16, max_running_requests=2, max_queued_requests=3)
    house = House(scheduling=limits)
    async with house as engine:
        answers = await asyncio.gather(
            *(collect(engine, ask(name=str(i))) for i in range(8)), return_exceptions=True
        )
    assert sum(isinstance(answer, OverloadedError) for answer in answers) == 3
    assert sum(isinstance(answer, GenerationEvent) for answer in answers) == 5


async def test_ranks_that_come_back_with_fewer_blocks_are_not_overfilled() -> None:
    house = House((OracleDrafter(),), num_blocks=40)
    house.llm.fail_at = {3}
    house.llm.blocks_after_restore = 12
    async with house as engine:
        asked = [ask([seed, 1, 2], 30, str(seed)) for seed in range(4)]
        large = asyncio.create_task(collect(engine, ask([1, 2, 3], 80, "large")))
        answers = await asyncio.gather(*(collect(engine, request) for request in asked))
        with pytest.raises(UnavailableError, match="too small"):
            await large
        with pytest.raises(InputError, match="holds 48"):
            await collect(engine, ask([1], 48, "later"))
    for seed, answer in enumerate(answers):
        assert answer.token_ids == expected([seed, 1, 2], 30)


async def test_a_reply_without_the_wanted_logprobs_loses_no_token() -> None:
    """The epoch is lost before anything of the bad reply is committed."""
    house = House()
    step, bad = house.llm.step, {2}

    async def forgetful(message: StepMessage) -> StepReply:
        reply = await step(message)
        if message.epoch == 0 and message.step_id in bad:
            results = tuple(replace(result, logprobs=(), top=()) for result in reply.results)
            return replace(reply, results=results)
        return reply

    house.llm.step = forgetful  # type: ignore[method-assign]
    house.num_faults = 1
    async with house as engine:
        plain, scored = await asyncio.gather(
            collect(engine, ask()), collect(engine, ask(name="b", num_logprobs=1))
        )
    assert house.llm.num_restores == 1
    assert plain.token_ids == scored.token_ids == expected([1, 2, 3], 20)
    assert len(scored.logprobs) == 20


async def test_a_loop_that_has_ended_is_noticed() -> None:
    house = House()
    async with house as engine:
        await collect(engine, ask())
        engine.require_running()
        task, _ = engine._tasks
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(UnavailableError, match="loop has ended"):
            engine.require_running()


async def test_refusals_do_not_pile_up_on_one_exception() -> None:
    house = House()
    async with house as engine:
        await collect(engine, ask())
        await engine.stop()
        refusals = []
        for _ in range(2):
            with pytest.raises(UnavailableError) as refusal:
                await collect(engine, ask())
            refusals.append(refusal.value)
    assert refusals[0] is not refusals[1]


async def test_stopping_ends_readers_with_an_error() -> None:
    house = House()
    async with house as engine:
        house.llm.hold = asyncio.Event()
        reader = asyncio.create_task(collect(engine, ask()))
        await asyncio.sleep(0)
        await engine.stop()
        with pytest.raises(UnavailableError):
            await reader
        with pytest.raises(UnavailableError):
            await collect(engine, ask(name="b"))
        house.llm._held.clear()
        house.watcher.last_gauges = (0, 0, 0)


class FaultyLLM(ScriptedLLM):
    """Cannot draw as it should from the seventh output token on."""

    async def step(self, message: StepMessage) -> StepReply:
        reply = await super().step(message)
        rows = {row.request_id: row for row in message.rows}
        results = [self._with_faults(rows[one.request_id], one) for one in reply.results]
        return replace(reply, results=tuple(results))

    def _with_faults(self, row: Row, result: RowResult) -> RowResult:
        places = range(row.first_output, len(row.tree))
        drawn_at = [row.start + row.tree.depths[node] + 1 for node in places]
        faulty = [output for output, place in enumerate(drawn_at) if place >= 3 + 6]
        return replace(result, failed_outputs=tuple(faulty))


@pytest.mark.parametrize("drafters", [[], [OracleDrafter()]])
async def test_what_was_drawn_before_a_fault_is_delivered(drafters: Sequence[Drafter]) -> None:
    house = House(drafters)
    house.llm = FaultyLLM(script)
    async with house as engine:
        for seed in range(8):
            tokens: tuple[int, ...] = ()
            asked = ask(
                name=str(seed),
                sampling=SamplingParams(temperature=0.0, seed=seed),
                grammar_param="guided_regex",
            )
            with pytest.raises(InputError) as raised:
                async for event in engine.generate(asked):
                    tokens += event.token_ids
            assert raised.value.param == "guided_regex"
            assert raised.value.message == "the grammar needs too much work to be followed on"
            assert tokens == expected((1, 2, 3), 6, seed)
            at_the_end = ask(max_tokens=6, sampling=asked.sampling)
            assert (await collect(engine, at_the_end)).token_ids == tokens
