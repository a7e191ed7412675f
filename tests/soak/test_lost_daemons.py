"""A server whose Ray daemons die says so, ends, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from cluster.bench.server import free_port

PATIENCE_S = 120.0
END_S = 20.0


@pytest.mark.parametrize("daemon", ["gcs_server", "raylet"])
def test_a_server_without_its_daemons_ends(tiny_model: Path, tmp_path: Path, daemon: str) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump({"model": {"path": str(tiny_model), "dtype": "float32"}}))
    command = [sys.executable, "-m", "cluster.cli", "serve", str(config)]
    server = subprocess.Popen(
        [*command, "--port", str(free_port())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        assert any("is served at" in line for line in server.stdout)
        family = psutil.Process(server.pid).children(recursive=True)
        (victim,) = (process for process in family if process.name() == daemon)
        victim.kill()
        _, err = server.communicate(timeout=END_S)
        assert server.returncode == 1
        assert "Ray's daemons have died" in err
        gone, alive = psutil.wait_procs(family, timeout=5.0)
        assert not alive, gone
    finally:
        server.kill()
        server.communicate()
