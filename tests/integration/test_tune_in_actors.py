"""`treeserve tune` in Ray actors, through DeepSpeed."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import PATIENCE_S
from safetensors.torch import load_file

from cluster import tune_command
from cluster.cli import main
from tests.alone import train_alone
from tests.tune_runs import POOL, TuneRuns

pytestmark = pytest.mark.integration


def test_two_workers_learn_what_one_does_without_deepspeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = TuneRuns(tmp_path, steps=40)
    two = runs.start("two", "--workers", "2")
    try:
        assert two.wait(PATIENCE_S * 2) == 0
    finally:
        two.kill()
    monkeypatch.setattr(tune_command, "train", train_alone)
    assert main(runs.arguments("alone")) == 0
    for name in POOL:
        alone, side_by_side = (load_file(runs.checkpoint(out, name)) for out in ("alone", "two"))
        for key, value in alone.items():
            if key.startswith("model."):
                away = (value.float() - side_by_side[key].float()).norm() / value.float().norm()
                # bfloat16 rounds other groups otherwise, and Muon makes as much of the
                # directions in which nearly nothing but rounding is left.
                assert away < 0.2, (name, key)
        losses = [runs.progress(out, name)["loss"] for out in ("alone", "two")]
        assert losses[1] == pytest.approx(losses[0], rel=1e-3)
