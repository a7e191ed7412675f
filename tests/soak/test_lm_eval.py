"""lm-eval's `local-completions` against the server: the numbers of the same task in `transformers`.

Needs `pip install "lm-eval[api]"`, in an environment of its own if need be: LM_EVAL is the command
then; and items of PIQA, a JSON object a line with goal, sol1, sol2 and answer: PIQA is the file.
SOAK_ITEMS: how many of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import serving

LM_EVAL = os.environ.get("LM_EVAL", "lm_eval")
NUM_ITEMS = int(os.environ.get("SOAK_ITEMS", "40"))
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data" / "piqa" / "piqa_sample.jsonl"
ITEMS = Path(os.environ.get("PIQA", BESIDE))
TOLERANCE = 2e-5
"""Of an answer's log-probability, relative to it: float32, summed in another order."""

pytestmark = [
    pytest.mark.skipif(shutil.which(LM_EVAL) is None, reason="lm-eval is not installed"),
    pytest.mark.skipif(not ITEMS.exists(), reason=f"no items to ask in {ITEMS}"),
]


def test_log_probabilities_are_those_of_transformers(smollm2_path: Path, tmp_path: Path) -> None:
    num_items = write_task(tmp_path / "task")
    with serving({"model": {"path": str(smollm2_path), "dtype": "float32"}}, tmp_path) as server:
        where = f"base_url={server.url}/v1/completions,model={smollm2_path.name}"
        more = f"tokenizer_backend=huggingface,tokenizer={smollm2_path},num_concurrent=4"
        found = evaluate("local-completions", f"{where},{more}", tmp_path)
    expected = evaluate("hf", f"pretrained={smollm2_path},dtype=float32", tmp_path)
    assert len(found) == len(expected) == num_items
    differences = []
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours["acc"], ours["acc_norm"]) == (theirs["acc"], theirs["acc_norm"])
        pairs = zip(ours["filtered_resps"], theirs["filtered_resps"], strict=True)
        for (ours_logprob, ours_greedy), (logprob, greedy) in pairs:
            assert str(ours_greedy) == str(greedy)
            differences.append(abs(1.0 - float(ours_logprob) / float(logprob)))
    accuracy = sum(item["acc"] for item in found) / num_items
    print(f"accuracy {accuracy:.3f} of {num_items}, largest difference {max(differences):.1e}")
    assert max(differences) < TOLERANCE


def write_task(folder: Path) -> int:
    """PIQA as lm-eval has it, from a file; the number of its items."""
    folder.mkdir()
    rows = [json.loads(line) for line in ITEMS.read_text().splitlines()[:NUM_ITEMS]]
    fields = [
        {
            "goal": row["goal"],
            "sol1": row["sol1"],
            "sol2": row["sol2"],
            "label": ["solution1", "solution2"].index(row["answer"]),
        }
        for row in rows
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in fields))
    task = {
        "task": "piqa_here",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"validation": str(folder / "items.jsonl")}},
        "output_type": "multiple_choice",
        "validation_split": "validation",
        "doc_to_text": "Question: {{goal}}\nAnswer:",
        "doc_to_target": "label",
        "doc_to_choice": "{{[sol1, sol2]}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    (folder / "piqa_here.yaml").write_text(yaml.safe_dump(task))
    return len(rows)


def evaluate(model: str, arguments: str, folder: Path) -> list[dict[str, object]]:
    """What lm-eval found, item by item."""
    output = folder / model
    subprocess.run(
        [
            *(LM_EVAL, "run", "--model", model, "--model_args", arguments),
            *("--tasks", "piqa_here", "--include_path", str(folder / "task")),
            *("--batch_size", "4", "--log_samples", "--output_path", str(output)),
        ],
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")},
    )
    (samples,) = output.rglob("samples_*.jsonl")
    items = [json.loads(line) for line in samples.read_text().splitlines()]
    return sorted(items, key=lambda item: item["doc_id"])
