"""Structured output in modes of speculation: what the bench says of answers that it is given."""

from __future__ import annotations

import json

import pytest

from actors.errors import InputError
from cluster.bench.client import Answer
from cluster.bench.modes import ModeResult
from cluster.bench.prompts import Prompt
from cluster.bench.snapshots import Counts
from cluster.bench.structured import SCHEMA, is_valid, load_schema, report

GOOD = '{"answerable": true, "answer": "Yes."}'
ACCOUNT = {
    "num_llm_steps": 2,
    "num_draft_tokens": 4,
    "num_accepted_draft_tokens": 1,
    "draft_s": 0.1,
    "step_s": 0.2,
    "forward_s": 0.1,
}


def answer(text=GOOD, tokens=(1, 2, 3, 4), finish_reason="stop"):
    return Answer(
        0.0, [1.0, 2.0], [1, len(tokens) - 1], list(tokens), [], text, finish_reason, ACCOUNT
    )


def results(*by_mode):
    found = {}
    for number, answers in enumerate(by_mode):
        mode = found[str(number)] = ModeResult(str(number))
        for one in answers:
            mode.add(Prompt("all", "?"), one, Counts.parse(""))
    return found


def test_equal_and_valid_answers():
    found = report(results([answer(), answer()], [answer(), answer()]), SCHEMA)
    assert (found["prompts"], found["equal"]) == (2, 2)
    assert (found["answers"], found["ended"], found["valid"]) == (4, 4, 4)
    assert found["modes"]["0"]["tokens_per_step"] == 3 / 2


def test_a_token_more_or_a_wrong_type_is_told():
    wrong = answer('{"answerable": "yes", "answer": "Yes."}', (1, 2, 3, 5))
    found = report(results([answer(), answer()], [answer(), wrong]), SCHEMA)
    assert (found["equal"], found["ended"], found["valid"]) == (1, 4, 3)


def test_what_was_cut_off_need_not_fit():
    cut = answer(GOOD[:20], finish_reason="length")
    found = report(results([cut], [cut]), SCHEMA)
    assert (found["equal"], found["ended"], found["valid"]) == (1, 0, 0)


@pytest.mark.parametrize("text", ["", "{", "[]", GOOD[:-1] + ', "more": 1}', '{"answer": "x"}'])
def test_what_does_not_fit_the_schema(text):
    assert is_valid(answer(), SCHEMA)
    assert not is_valid(answer(text), SCHEMA)


@pytest.mark.parametrize("text", ["{", '{"type": 3}'])
def test_a_file_that_is_no_schema_is_refused(tmp_path, text):
    path = tmp_path / "schema.json"
    path.write_text(text)
    with pytest.raises(InputError):
        load_schema(path)
    path.write_text(json.dumps(SCHEMA))
    assert load_schema(path) == SCHEMA
