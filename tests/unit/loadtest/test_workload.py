from __future__ import annotations

import json

import numpy as np
import pytest

from loadtest.errors import UsageError
from loadtest.plan import blocks, load_plan, save_plan
from loadtest.prompts import Prompt, read_prompts, user
from loadtest.synthetic import Filler
from loadtest.tokenizer import RoughRuler, cut
from loadtest.traces import TraceRow
from loadtest.workload import LengthRange, PlanMaker, WorkloadSpec

PROMPTS = tuple(Prompt(((user(f"What is {n}?"),), (user("And then?"),))) for n in range(5))
RULER = RoughRuler()


def make(spec, times, seed=0, rows=None, length_scale=1.0):
    maker = PlanMaker(spec, Filler(RULER, seed), np.random.default_rng(seed), length_scale)
    return maker.plan(times, rows)


def spec(**fields):
    return WorkloadSpec(LengthRange(10, 10), **fields)


def openings(plan):
    return [session.requests[0].messages[-1]["content"] for session in plan.sessions]


def test_prompts_do_not_repeat_over_several_passes():
    texts = openings(make(spec(prompts=PROMPTS), [0.0] * 23))
    assert len(set(texts)) == 23
    # What tells a later pass from the first stands in front, where it spoils a shared prefix.
    assert all(not text.startswith("What") for text in texts[5:])


def test_prompts_repeat_if_wished():
    assert len(set(openings(make(spec(prompts=PROMPTS, distinct=False), [0.0] * 23)))) == 5


def test_prompts_do_not_repeat_from_one_plan_of_a_sweep_to_the_next():
    maker = PlanMaker(spec(prompts=PROMPTS), Filler(RULER, 0), np.random.default_rng(0))
    texts = openings(maker.plan([0.0] * 4)) + openings(maker.plan([0.0] * 4))
    assert len(set(texts)) == 8


def test_a_seed_gives_one_plan():
    wanted = spec(prompts=PROMPTS, cancel_share=0.5, choices={"temperature": [0, 1]})
    assert make(wanted, [0.0] * 9) == make(wanted, [0.0] * 9)
    assert make(wanted, [0.0] * 9) != make(wanted, [0.0] * 9, seed=1)


def test_synthetic_prompts_have_their_length_and_are_distinct():
    texts = openings(make(spec(prompt_tokens=LengthRange(20, 60)), [0.0] * 30))
    lengths = [len(RULER.ends(text)) for text in texts]
    assert min(lengths) >= 19 and max(lengths) <= 61 and len(set(lengths)) > 5
    assert len(set(texts)) == 30


def test_a_long_text_out_of_passages_is_measured_a_few_times_only():
    class Counting(RoughRuler):
        num_measured = 0

        def ends(self, text):
            self.num_measured += 1
            return super().ends(text)

    ruler = Counting()
    text = Filler(ruler, 0, ["a short passage", "and another one"]).text((0,), 4000)
    assert len(RoughRuler().ends(text)) == 4000
    assert ruler.num_measured < 10


def test_a_family_shares_its_prefix_and_nothing_else():
    texts = openings(
        make(spec(prompt_tokens=LengthRange(30, 30), families=2, prefix_tokens=40), [0.0] * 6)
    )
    prefix = len(cut(RULER, texts[0], 39))
    assert texts[0][:prefix] == texts[2][:prefix] == texts[4][:prefix]
    assert texts[0][:prefix] != texts[1][:prefix]
    assert len({text[prefix:] for text in texts}) == 6


def test_a_trace_says_the_lengths_and_its_blocks_the_shared_prefixes():
    rows = [
        TraceRow(0.0, 90, 7, (1, 2, 3)),
        TraceRow(1.0, 90, 9, (1, 2, 4)),
        TraceRow(2.0, 90, 9, (5, 6, 7)),
    ]
    wanted = spec(prompt_tokens=LengthRange(1, 1))
    plan = make(wanted, [0.0, 1.0, 2.0], rows=rows, length_scale=32 / 512)
    one, two, other = openings(plan)
    shared = len(cut(RULER, one, 60))
    assert one[:shared] == two[:shared] != other[:shared]
    assert one != two
    assert [session.requests[0].params["max_tokens"] for session in plan.sessions] == [7, 9, 9]
    assert all(abs(len(RULER.ends(text)) - 90) <= 1 for text in (one, two, other))


def test_conversations_have_turns_and_requests_are_numbered_through():
    plan = make(spec(prompts=PROMPTS, max_turns=2, think_s=1.0), [0.0, 1.0])
    assert [request.index for one in plan.sessions for request in one.requests] == [0, 1, 2, 3]
    first, second = plan.sessions[0].requests
    assert first.think_s == 0.0 < second.think_s
    assert second.messages == ({"role": "user", "content": "And then?"},)


def test_some_requests_are_hung_up_on_within_their_length():
    plan = make(spec(prompts=PROMPTS, cancel_share=0.3), [0.0] * 500)
    places = [one.requests[0].cancel_after_tokens for one in plan.sessions]
    chosen = [place for place in places if place is not None]
    assert len(chosen) == pytest.approx(150, abs=40)
    assert all(1 <= place < 10 for place in chosen)


def test_sampled_requests_have_seeds_and_rows_their_own_parameters():
    prompts = (Prompt(((user("x"),),), params={"max_tokens": 3, "top_p": 0.5}),)
    (one,) = make(spec(prompts=prompts, params={"temperature": 0.8}), [0.0]).sessions
    params = one.requests[0].params
    assert params["max_tokens"] == 3 and params["top_p"] == 0.5 and "seed" in params
    (greedy,) = make(spec(prompts=prompts, params={"temperature": 0}), [0.0]).sessions
    assert "seed" not in greedy.requests[0].params


def test_a_plan_is_saved_and_read_again(tmp_path):
    plan = make(spec(prompts=PROMPTS, max_turns=2, cancel_share=0.5), [0.0, 1.5, 2.5])
    save_plan(plan, tmp_path / "schedule.jsonl")
    assert load_plan(tmp_path / "schedule.jsonl").sessions == plan.sessions


HEAD = '{"schedule_version": 1, "num_sessions": 1, "notes": []}\n'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}\n",
        "[]\n",
        HEAD,
        HEAD + '{"at_s": 1}\n',
        HEAD + '{"at_s": "x", "requests": []}\n',
        HEAD + '{"at_s": -1, "requests": []}\n',
        HEAD + '{"at_s": 0, "requests": [{"messages": "x", "params": {}}]}\n',
        HEAD.replace("1,", "2,", 1) + '{"at_s": 0, "requests": []}\n',
        "nonsense",
    ],
)
def test_another_file_is_no_plan(tmp_path, text):
    path = tmp_path / "schedule.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match="not a saved schedule"):
        load_plan(path)


def test_a_plan_that_lost_its_end_or_its_order_is_none(tmp_path):
    path = tmp_path / "schedule.jsonl"
    save_plan(make(spec(prompts=PROMPTS), [0.0, 1.0, 2.0]), path)
    head, *lines = path.read_text().splitlines(keepends=True)
    for text, said in ((head + lines[0], "1 of 3"), (head + "".join(lines[::-1]), "rise")):
        path.write_text(text)
        with pytest.raises(UsageError, match=said):
            load_plan(path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"params": {"max_tokens": "x"}}, "max_tokens"),
        ({"params": {"temperature": "hot"}}, "temperature"),
        ({"params": {"stream": False}}, "stream"),
        ({"choices": {"max_tokens": [4, None]}}, "max_tokens"),
        ({"prompts": (Prompt(((user("a"),),), params={"temperature": []}),)}, "temperature"),
    ],
)
def test_fields_of_the_body_that_cannot_be_sent_are_named(fields, said):
    with pytest.raises(UsageError, match=said):
        spec(**fields).check()


def test_blocks_keep_every_session_and_begin_at_zero():
    plan = make(spec(prompts=PROMPTS), [float(second) for second in range(10)])
    parts = list(blocks(plan.sessions, 3))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert [part[0].at_s for part in parts] == [0.0, 0.0, 0.0]
    assert [one.requests for part in parts for one in part] == [
        one.requests for one in plan.sessions
    ]


def test_prompt_sets_are_read_in_all_shapes(tmp_path):
    rows = [
        {"turns": ["a", "b"], "task": "chat"},
        {"prompt": "c", "max_tokens": 5},
        {"question": "d"},
        {"text": "e"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "f"},
                      {"role": "assistant", "content": "g"}]},
        {"prompt": [1, 2, 3]},
        {"prompt": "c", "max_tokens": 5},
    ]  # fmt: skip
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read_prompts([tmp_path])
    assert [prompt.text for prompt in found.prompts] == ["a", "c", "d", "e", "f"]
    assert found.num_left_out == 2
    assert found.prompts[0].turns[1][0]["content"] == "b"
    assert found.prompts[1].params == {"max_tokens": 5}
    assert [message["role"] for message in found.prompts[4].turns[0]] == ["system", "user"]


def test_only_a_line_end_ends_a_row_and_a_mark_at_the_begin_is_none(tmp_path):
    text = "one\u2028two\x85three"
    row = json.dumps({"prompt": text}, ensure_ascii=False)
    (tmp_path / "set.jsonl").write_text(f'\ufeff{row}\r\n{row[:-1]}, "max_tokens": 3}}\n')
    (found,) = read_prompts([tmp_path / "set.jsonl"]).prompts
    assert found.text == text


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "set.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": \n')
    with pytest.raises(UsageError, match="line 3"):
        read_prompts([tmp_path / "set.jsonl"])


def test_messages_that_are_no_text_are_left_out(tmp_path):
    picture = [{"type": "image_url", "image_url": {"url": "x"}}]
    rows = [
        {"messages": [{"role": "user", "content": picture}]},
        {"messages": [{"content": "a"}]},
        {"messages": ["a"]},
        {"prompt": "half \ud800"},
    ]
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read_prompts([tmp_path / "set.jsonl"])
    assert [prompt.text for prompt in found.prompts] == ["half ?"] and found.num_left_out == 3


def test_a_folder_without_prompts_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_prompts([tmp_path])
    (tmp_path / "x.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(UsageError, match="no prompt"):
        read_prompts([tmp_path])


@pytest.mark.parametrize("text", ["", "0", "9-3", "a", "1-", "-5"])
def test_wrong_lengths_are_refused(text):
    with pytest.raises(UsageError):
        LengthRange.parse(text)
