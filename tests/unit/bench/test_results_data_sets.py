"""Prompt sets in their shapes, and what is asked of each."""

from __future__ import annotations

import json

import pytest

from actors.errors import InputError
from cluster.bench.results.data_sets import load_sets

TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]},
    {"role": "tool", "content": "found"},
    {"role": "assistant", "content": "there"},
    {"role": "user", "content": "bye"},
]


def encode(messages):
    """A token for each letter."""
    text = "|".join(f"{one['role'][0]}:{one['content']}" for one in messages)
    return tuple(map(ord, text))


@pytest.fixture
def folder(tmp_path):
    def write(name, *rows):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(
        "spec/q.jsonl", *({"turns": [f"{t}{n}", "more"], "task": t} for t in "ab" for n in range(3))
    )
    write("code_edit_x/q.jsonl", {"prompt": "long" * 30}, {"prompt": "fix"})
    write("talks/air.jsonl", {"messages": TALK})
    write("talks/shop.jsonl", {"transcript": "user: one\ntwo\nassistant: three\nuser: four"})
    (tmp_path / "talks" / "system_prompt.txt").write_text("rules")
    return tmp_path


def texts(folder, *patterns, per_task=2, max_tokens=60):
    found = load_sets(folder, patterns, per_task, max_tokens, encode)
    return [(prompt.label, "".join(map(chr, prompt.token_ids))) for prompt in found]


def test_tasks_take_turns_and_too_long_prompts_are_passed_over(folder):
    assert texts(folder, "spec", "code_edit_*") == [
        ("spec/a", "u:a0"),
        ("spec/b", "u:b0"),
        ("code_edit_x", "u:fix"),
        ("spec/a", "u:a1"),
        ("spec/b", "u:b1"),
    ]


def test_a_talk_is_asked_again_at_the_latest_answer_that_fits(folder):
    whole = 's:rules|u:hi|a:[{"name": "look"}]|t:found'
    assert texts(folder, "talks") == [
        ("talks/air", whole),
        ("talks/shop", "s:rules|u:one\ntwo"),
    ]
    assert texts(folder, "talks", max_tokens=len(whole) - 1)[0] == ("talks/air", "s:rules|u:hi")


@pytest.mark.parametrize("line", ['{"text": "x"}', "no JSON", "[1]", '{"messages": [1]}'])
def test_a_file_of_something_else_is_refused(folder, line):
    (folder / "spec" / "q.jsonl").write_text(line)
    with pytest.raises(InputError, match=r"q\.jsonl"):
        texts(folder, "spec")


def test_a_set_that_is_not_there_is_named(folder):
    with pytest.raises(InputError, match="'none_"):
        texts(folder, "none_*")
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match="empty"):
        texts(folder, "empty")
