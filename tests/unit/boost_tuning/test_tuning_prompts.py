"""Prompts for the LLM to answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.errors import InputError
from actors.ssm.boost_tuning.prompts import own_prompts, read_prompts


def test_own_prompts_are_many_different_and_the_same_for_a_seed() -> None:
    prompts = own_prompts(500, seed=3)
    assert prompts == own_prompts(500, seed=3) != own_prompts(500, seed=4)
    assert len({prompt.text for prompt in prompts}) == 500
    assert len({prompt.task for prompt in prompts}) == 10
    assert not any("{" in prompt.text for prompt in prompts)


def test_more_than_the_templates_yield_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"slots": {}, "templates": {"chat": ["Hello."]}}
    monkeypatch.setattr("actors.ssm.boost_tuning.prompts._data", lambda: data)
    with pytest.raises(InputError, match="only 1"):
        own_prompts(2, seed=0)


def test_files_give_messages_as_they_are_and_passages_as_tasks(tmp_path: Path) -> None:
    passage = " ".join(f"Sentence number {n} is about the river Elbe." for n in range(200))
    rows = [
        {"messages": [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Yes"}]},
        {"turns": ["First?", "Second?"], "task": "qa"},
        {"text": passage},
    ]
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    chat, turn, *tasks = read_prompts(file, seed=0)
    assert (chat.source, chat.task, chat.text) == ("some", "chat", "Hi?")
    assert (turn.task, turn.text) == ("qa", "First?")
    assert len(tasks) > 1
    assert all("Sentence number" in prompt.text and len(prompt.text) < 5000 for prompt in tasks)


@pytest.mark.parametrize("line", ["{", "{}", "[1]", '{"messages": []}'])
def test_names_the_line_that_is_wrong(tmp_path: Path, line: str) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text('{"text": "short"}\n' + line)
    with pytest.raises(InputError, match=r"some.jsonl:2"):
        read_prompts(file, seed=0)
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path / "none", seed=0)
