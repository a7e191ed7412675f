"""The command's report and tables, with the measuring itself replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster import bench_command, cli
from cluster.bench import tables
from cluster.bench.modes import ModeResult
from cluster.bench.prompts import Prompt
from tests.unit.bench.test_modes import answer
from tests.unit.bench.test_prediction import counts_of

READY = Path(__file__).resolve().parents[3] / "deploy" / "configs" / "smollm2.yaml"
STEPS = {"floor_1_ms": 1.0, "forward_1_ms": 2.0, "step_1_ms": 3.0, "transformers_1_ms": 4.0}
CALLS = {"1": {"draft_ms": 5.0, "step_ms": 10.0, "draft_to_step": 0.5}}


def results() -> dict[str, ModeResult]:
    plain, drafted = ModeResult("plain"), ModeResult("ssm")
    plain.add(Prompt("qa", "?"), answer(9, 8), counts_of(*[None] * 8))
    drafted.add(Prompt("qa", "?"), answer(9, 4), counts_of(0, 1, 3, None))
    return {"plain": plain, "ssm": drafted}


def test_parts_are_measured_alone_and_the_json_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = []

    def measured(name: str, config: object, arguments: object, *options: str) -> object:
        asked.append((name, options))
        return STEPS if name == "steps" else CALLS

    monkeypatch.setattr(bench_command, "_measured", measured)
    path = tmp_path / "figures.json"
    options = ["--parts", "steps", "draft_calls", "--temperature", "0", "1", "--json", str(path)]
    assert cli.main(["bench", str(READY), *options]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == json.loads(path.read_text())
    assert json.loads(last)["steps"] == STEPS
    assert [call["temperature"] for call in json.loads(last)["draft_calls"]] == [0.0, 1.0]
    assert [name for name, _ in asked] == ["steps", "draft_calls", "draft_calls"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--json", "{folder}/no/figures.json"], "figures.json: No such file"),
        (["--modes", "medusa"], "no mode 'medusa'"),
        (["--prompts", "{folder}/none.jsonl"], "none.jsonl: not a file of prompts"),
        (["--prompts", "{folder}/empty.jsonl"], "empty.jsonl: no prompts"),
    ],
)
def test_wrong_use_is_told_before_anything_is_measured(
    options: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    monkeypatch.setattr(bench_command, "PARTS", dict.fromkeys(bench_command.PARTS, pytest.fail))
    options = [option.format(folder=tmp_path) for option in options]
    assert cli.main(["bench", str(READY), *options]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--limit", "--batches", "--rounds", "--seeds"])
def test_counts_are_positive(option: str) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", str(READY), option, "0"])
    assert caught.value.code == 2


def test_the_report_is_json_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    report = bench_command._mode_report(results()) | {"temperature": 1.0, "num_seeds": 1}
    assert json.loads(json.dumps(report)) == report
    assert report["acceptance"]["ssm"]["tree"]["acceptance"] == [2 / 3, 1 / 2, 1.0]
    assert report["speed_up"]["ssm"]["qa"]["measured"] == pytest.approx(1.0)
    assert report["noise"]["plain"]["llm"]["hit_rate"] == 0.75
    tables.print_serving(report)
    out = capsys.readouterr().out
    assert "0.67 (0.75)" in out
    assert report["findings"][0] in out
