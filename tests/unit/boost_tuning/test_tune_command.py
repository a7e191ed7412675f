"""`treeserve tune` from end to end, on a tiny LLM with an alphabet of bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from actors.ssm.boost_tuning.lesson import HELD_OUT_EVERY
from actors.ssm.folder import load_draft
from cluster import tune_command
from cluster.cli import main
from cluster.tune_teacher import Teacher
from tests.alone import train_alone
from tests.byte_llm import write_llm


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_command, "train", train_alone)


@pytest.fixture
def llm(tmp_path: Path) -> Path:
    return write_llm(tmp_path / "llm")


@pytest.fixture
def command(llm: Path, tmp_path: Path) -> list[str]:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"model": {"path": str(llm)}}))
    evaluation = tmp_path / "measure.jsonl"
    evaluation.write_text('{"turns": ["What is a tree?"], "task": "qa"}\n')
    words = f"tune {config} --out {tmp_path / 'draft'} --own-prompts 80 --width 64 --layers 1"
    words += f" --ff 32 --cut 200 --steps 6 --evaluate {evaluation}"
    return words.split()


def test_writes_a_draft_that_can_be_loaded(
    command: list[str], llm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "| held out |" in shown.out and "| measure: qa |" in shown.out
    assert "answers 100 %" in shown.err and "training draft 100 %" in shown.err
    model, config = load_draft(tmp_path / "draft", llm)
    assert len(model.cut_ids) == config.cut_size == 200
    card = (tmp_path / "draft" / "README.md").read_text()
    assert config.llm.weights_hash in card
    assert "| own |" in card and "no terms" in card


def test_goes_on_where_it_was_killed(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Teacher.answer
    calls: list[int] = []

    def killed_at_the_second(self: Teacher, *args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return answer(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(tune_command, "BATCH_ANSWERS", 30)
    monkeypatch.setattr(Teacher, "answer", killed_at_the_second)
    assert main(command) == 1
    assert len(calls) == 2
    assert main(command) == 0
    assert len(calls) == 5  # 3 batches and 1 to measure on; the first was not made again
    assert main(command) == 0
    assert len(calls) == 5
    assert (tmp_path / "draft" / "model.safetensors").is_file()


def test_a_pool_is_tuned_one_after_the_other(
    command: list[str], llm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = [*command, "--pool", "2", "--boost", "places", "--boost-rest", "0.5"]
    assert main(pool) == 0
    shown = capsys.readouterr()
    assert "| the first words of the first 1, 2, … models cover, % |" in shown.out
    assert "training ssm-1 100 %" in shown.err
    folders = [tmp_path / "draft" / f"ssm-{number}" for number in range(2)]
    models = [load_draft(folder, llm)[0] for folder in folders]
    assert any(
        not torch.equal(one, other)
        for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True)
    )
    card = (folders[1] / "README.md").read_text()
    assert "model 1 of 2; places that those before it get right weigh 0.5." in card
    files = {folder: (folder / "model.safetensors").read_bytes() for folder in folders}
    assert main(pool) == 0, "called again, it makes the same"
    assert all((folder / "model.safetensors").read_bytes() == was for folder, was in files.items())
    assert main([*command, "--pool", "3"]) == 2
    assert "begun with other settings (pool)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (["--width", "100"], "--width"),
        (["--minutes", "0"], "--minutes"),
        (["--generate-tokens", "0"], "--generate-tokens"),
        (["--seed", "-1"], "--seed"),
        (["--pool", "0"], "--pool"),
        (["--workers", "0"], "--workers"),
        (["--checkpoint-s", "-1"], "--checkpoint-s"),
        (["--boost-rest", "2"], "--boost-rest"),
        (["--out", "/dev/null/draft"], "cannot be written to: Not a directory"),
        (["--sampled", "2"], "--sampled"),
        (["--terms", "word"], "--terms"),
        (["--prompts", "/nowhere.jsonl"], "no such file"),
        (["--answer-tokens", "0"], "--answer-tokens"),
        (["--matrix-rate", "0"], "--matrix-rate"),
        (["--cut", "258"], "--cut: must be at most 257"),
        (["--records", "/nowhere"], "--records"),
    ],
)
def test_wrong_use_is_told(
    command: list[str], wrong: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *wrong]) == 2
    assert complaint in capsys.readouterr().err


def test_prompts_to_measure_on_are_never_learnt_from(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--prompts", str(tmp_path / "measure.jsonl")]) == 2
    assert "evaluation set" in capsys.readouterr().err


def test_other_settings_do_not_mix_with_begun_work(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 0
    assert main([*command, "--seed", "5"]) == 2
    assert "begun with other settings" in capsys.readouterr().err


def test_goes_on_from_another_draft_with_its_answers(
    command: list[str], llm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "draft", tmp_path / "second"
    assert main(command) == 0
    more = f"--out {second} --init {first} --records {first} --layers 2 --cut 220 --seed 3"
    assert main([*command, *more.split()]) == 0
    learnt = [
        int(row.split("|")[2])
        for row in (second / "README.md").read_text().splitlines()
        if row.startswith("| own |")
    ]
    assert learnt == [160 - 160 // HELD_OUT_EVERY]
    model, _ = load_draft(second, llm)
    assert (model.shape.num_layers, len(model.cut_ids)) == (2, 220)
    assert main([*command, *more.split(), "--init", str(second)]) == 2
    assert "begun with other settings (init)" in capsys.readouterr().err
    assert main([*command, "--init", "/nowhere"]) == 1
    assert "draft model nowhere cannot be used" in capsys.readouterr().err
