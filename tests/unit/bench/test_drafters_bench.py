"""Arms of drafters: what is asked of each, and the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.request_manager.config import SpeculationConfig
from actors.request_manager.generation import SpeculationStats
from cluster.bench import drafters as bench
from cluster.bench.drafters import ARMS
from cluster.bench.served import Served, summary


def served(task: str, tokens: int, steps: int, seconds: float) -> Served:
    stats = SpeculationStats(
        num_llm_steps=steps, num_draft_tokens=3 * steps, draft_s=0.001 * steps, step_s=0.01 * steps
    )
    return Served(task, tuple(range(tokens)), seconds, stats)


def test_figures_are_ratios_of_sums_and_one_token_answers_have_none() -> None:
    figures = summary(
        [served("qa", 9, 4, 0.08), served("rag", 5, 4, 0.04), served("rag", 1, 0, 0.0)]
    )
    assert set(figures) == {"all", "qa", "rag"}
    assert figures["qa"] == pytest.approx(
        {
            "tokens_per_step": 2.0,
            "ms_per_token": 10.0,
            "nodes_per_step": 3.0,
            "draft_ms_per_step": 1.0,
            "llm_ms_per_step": 10.0,
        }
    )
    assert figures["all"]["tokens_per_step"] == 12 / 8
    assert figures["all"]["ms_per_token"] == pytest.approx(10.0)


@pytest.mark.parametrize("arm", ARMS)
def test_arms_are_configurations(arm: str) -> None:
    changed = SpeculationConfig(**ARMS[arm])
    assert changed.drafters == ARMS[arm]["drafters"]
    assert bool(changed.drafters) == (arm != bench.PLAIN)


def test_wrong_use_is_told_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench.Lab, "load", pytest.fail)
    monkeypatch.setattr("sys.argv", ["drafters", str(tmp_path / "none.yaml")])
    with pytest.raises(SystemExit) as caught:
        bench.main()
    assert caught.value.code == 2
    assert "none.yaml" in capsys.readouterr().err
