"""`python -m cluster.bench.results` from end to end, on tiny models of random weights."""

from __future__ import annotations

import json

import pytest
import torch

from cluster.bench.results.__main__ import PARTS, main
from tests.byte_llm import write_draft, write_llm

WITHOUT_SERVER = ("coverage", "widths", "rules", "tasks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    threads = torch.get_num_threads()
    path = tmp_path_factory.mktemp("results")
    llm = write_llm(path / "llm")
    drafts = [str(write_draft(path / f"draft-{seed}", llm, seed)) for seed in range(3)]
    config = {
        "model": {"path": str(llm), "dtype": "float32"},
        "ssms": [{"path": draft, "kv_memory_bytes": 1 << 20} for draft in drafts[:2]],
        "speculation": {"drafters": ["ssm", "prompt_lookup"], "draft_deadline_ms": 5000},
        "scheduler": {"kv_memory_bytes": 1 << 24},
    }
    (path / "config.yaml").write_text(json.dumps(config))
    (path / "alone.yaml").write_text(json.dumps({"model": config["model"]}))
    for name, tasks in (("spec_bench", ("qa", "rag")), ("humaneval", (None,))):
        (path / "data" / name).mkdir(parents=True)
        rows = [{"prompt": f"{name} {task}: say something", "task": task} for task in tasks]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (path / "data" / name / "q.jsonl").write_text(text)
    yield path
    torch.set_num_threads(threads)


def run(folder, config, out, *more):
    words = f"{folder / config} --data {folder / 'data'} --sets spec_bench humaneval --out {out}"
    return main([*words.split(), "--max-tokens", "6", *more])


def test_every_part_writes_its_section(folder, tmp_path, capsys):
    out = tmp_path / "docs" / "results.md"
    rivals = ["--rivals", str(folder / "draft-2"), "--parts", *WITHOUT_SERVER]
    assert run(folder, "config.yaml", out, *rivals) == 0
    document = out.read_text()
    places = [document.index(f"## {PARTS[part].title}\n") for part in WITHOUT_SERVER]
    assert places == sorted(places)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(figures) == list(WITHOUT_SERVER)
    greedy = figures["coverage"]["greedy"]
    assert list(greedy) == ["ssm-0", "ssm-1", "ssm-2", "pool of 2"]
    for arm in greedy.values():
        assert arm["nodes_per_step"] <= 16
        assert arm["top"] == sorted(arm["top"])
    assert greedy["pool of 2"]["top"][0] == greedy["ssm-0"]["top"][0], "it is asked first"
    widths = figures["widths"]["T = 1"]
    narrow, wide = widths["ssm-chain8"], widths["ssm-5.1.1.1.1.1.1.1"]
    assert wide["nodes_per_step"] > narrow["nodes_per_step"]
    # A tree with more children holds the narrower one, where all guesses share the LLM's noise.
    assert wide["tokens_per_step"] >= narrow["tokens_per_step"]
    assert {name.split()[1] for name in figures["rules"] if name != "seconds"} == {
        "naive",
        "mss",
        "coupled",
        "spectr",
    }
    assert set(figures["tasks"]["greedy"]["plain"]) == {
        "all",
        "spec_bench",
        "spec_bench/qa",
        "spec_bench/rag",
        "humaneval",
    }
    assert "Texts that are plain decoding's, of 3: configured 3, suffix shared 3" in document


def test_without_draft_models_their_parts_are_left_out(folder, tmp_path, capsys):
    out = tmp_path / "results.md"
    out.write_text("# Mine\n\n## Notes\n\nkept\n")
    assert run(folder, "alone.yaml", out, "--parts", "rules", "tasks") == 0
    shown = capsys.readouterr()
    assert "rules: left out" in shown.err
    assert list(json.loads(shown.out.splitlines()[-1])) == ["tasks"]
    document = out.read_text()
    assert document.startswith("# Mine") and document.endswith("## Notes\n\nkept\n")
    assert PARTS["tasks"].title in document and PARTS["rules"].title not in document


@pytest.mark.parametrize("wrong", [["--data", "nowhere"], ["--rivals", "nowhere"]])
def test_wrong_use_is_told_before_anything_is_measured(folder, tmp_path, capsys, wrong):
    with pytest.raises(SystemExit) as caught:
        run(folder, "config.yaml", tmp_path / "results.md", *wrong)
    assert caught.value.code == 2
    assert "nowhere" in capsys.readouterr().err
