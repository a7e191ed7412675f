"""Modes, prompts and summaries, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.errors import InputError
from cluster.bench.client import Answer
from cluster.bench.modes import ModeResult, Workload, modes_of
from cluster.bench.prompts import Prompt, load_prompts
from cluster.bench.snapshots import Counts


def answer(num_tokens: int, num_steps: int) -> Answer:
    """The first token at 1 s, the rest at 3 s."""
    return Answer(
        sent_s=0.0,
        chunk_s=[1.0, 3.0],
        chunk_tokens=[1, num_tokens - 1],
        token_ids=list(range(num_tokens)),
        speculation={
            "num_llm_steps": num_steps,
            "num_draft_tokens": 6,
            "num_accepted_draft_tokens": num_tokens - 1 - num_steps,
            "draft_s": 0.25,
            "step_s": 1.5,
            "forward_s": 1.25,
        },
    )


def result() -> ModeResult:
    found = ModeResult("ssm")
    found.add(Prompt("qa", "?"), answer(9, 4), Counts())
    found.add(Prompt("rag", "?"), answer(5, 4), Counts())
    return found


def test_totals_are_sums_of_a_task() -> None:
    assert result().tasks == ["all", "qa", "rag"]
    both, one = result().totals(), result().totals("rag")
    assert both is not None
    assert one is not None
    assert (both.num_decoded, both.num_steps, both.decode_s) == (12, 8, 4.0)
    assert (one.num_decoded, one.draft_s, one.step_s) == (4, 0.25, 1.5)
    assert both.fixed_s == pytest.approx((4.0 - 0.5 - 3.0) / 8)
    assert result().totals("math") is None


def test_the_summary_of_a_task() -> None:
    found = result().summary("qa")
    assert found["tokens_per_step"] == 2.0
    assert found["ms_per_token"] == 250.0
    assert found["draft_ms_per_step"] == 62.5
    assert set(result().summary("math").values()) == {None}


def test_modes() -> None:
    drafters = ["ssm", "prompt_lookup"]
    assert list(modes_of(drafters)) == ["plain", "ssm", "prompt_lookup", "merged"]
    assert list(modes_of(drafters, ["merged"])) == ["plain", "merged"]
    assert list(modes_of(["prompt_lookup"])) == ["plain", "prompt_lookup"]
    with pytest.raises(InputError, match="no mode 'medusa'") as caught:
        modes_of(drafters, ["medusa"])
    assert caught.value.param == "--modes"


def test_every_request_has_its_own_seed() -> None:
    workload = Workload([Prompt("qa", "?")], 8, 1.0, repeats=3)
    assert len(workload.turns) == 3
    options = [workload.options({"enabled": False}) for _ in range(4)]
    assert [one["seed"] for one in options] == [0, 1, 2, 3]
    assert options[0]["speculation"] == {"enabled": False}


def test_a_limit_on_prompts(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"task": task, "prompt": f"{task}{i}"} for i in range(3) for task in ("a", "b")]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [prompt.text for prompt in load_prompts(path, 2, 3)] == ["a0", "b0", "a1"]
    assert len(load_prompts(path, 2)) == 4
