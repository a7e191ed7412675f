"""The alerts, by promtool (Debian's package `prometheus` has it)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from manifests import Manifests
from metric_checks import rules

TESTS = Path(__file__).with_name("alerts.yaml")

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool (Debian package prometheus)"
)


@pytest.fixture
def folder(cpu: Manifests, tmp_path: Path) -> Path:
    """The rules as Prometheus reads them, and their tests beside them."""
    (rule,) = cpu.of("PrometheusRule")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    return tmp_path


def promtool(*arguments: str, folder: Path) -> str:
    command = ["promtool", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_the_rules_are_rules(cpu: Manifests, folder: Path) -> None:
    out = promtool("check", "rules", "--lint-fatal", "rules.yaml", folder=folder)
    assert f"{len(rules(cpu))} rules found" in out


@needs_promtool
def test_the_alerts_fire_when_they_should_and_only_then(folder: Path) -> None:
    promtool("test", "rules", TESTS.name, folder=folder)


def test_every_alert_is_tested_both_ways(cpu: Manifests) -> None:
    tested: dict[str, set[bool]] = {}
    for test in yaml.safe_load(TESTS.read_text())["tests"]:
        for one in test["alert_rule_test"]:
            tested.setdefault(one["alertname"], set()).add(bool(one["exp_alerts"]))
    alerts = {rule["alert"] for rule in rules(cpu) if "alert" in rule}
    assert tested == {alert: {True, False} for alert in alerts}
