"""The image's environment is the one that `treeserve serve` gives its own cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster import ray_api
from deploy.environment import prepare_environment

DOCKERFILE = Path(__file__).resolve().parents[3] / "deploy" / "Dockerfile"
OF_THE_CLUSTER = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}
"""Tokens are drawn for each cluster, and addresses are not loopback's."""
OF_THE_POD = {"OMP_NUM_THREADS"}


def test_the_environment_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh: dict[str, str] = {}
    monkeypatch.setattr("os.environ", fresh)
    prepare_environment()
    ray_api.prepare_environment()
    wanted = {
        name: value for name, value in fresh.items() if name not in OF_THE_CLUSTER | OF_THE_POD
    }
    assert wanted.keys() < fresh.keys()
    set_there = dict(re.findall(r"(\w+)=(\S+)", DOCKERFILE.read_text()))
    assert {name: set_there.get(name) for name in wanted} == wanted
