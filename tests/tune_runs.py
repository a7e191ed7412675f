"""Runs of `treeserve tune` on a tiny LLM: a pool of two, a checkpoint after every step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors import safe_open

from tests.byte_llm import write_llm

POOL = ("ssm-0", "ssm-1")


class TuneRuns:
    """Runs below one folder, each with an `--out` of its own."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps = folder, steps
        self._config = folder / "config.yaml"
        llm = write_llm(folder / "llm")
        content = {"model": {"path": str(llm)}, "llm": {"num_threads": 1}}
        self._config.write_text(json.dumps(content))

    def arguments(self, out: str, *more: str) -> list[str]:
        """Of the command."""
        words = f"tune {self._config} --out {self._folder / out} --own-prompts 40"
        words += f" --answer-tokens 16 --width 64 --layers 1 --ff 64 --cut 200 --pool {len(POOL)}"
        words += f" --steps {self._steps} --checkpoint-s 0"
        return [*words.split(), *more]

    def start(self, out: str, *more: str) -> subprocess.Popen[bytes]:
        """The command as a process of its own."""
        command = [sys.executable, "-m", "cluster.cli", *self.arguments(out, *more)]
        return subprocess.Popen(command)

    def checkpoint(self, out: str, name: str) -> Path:
        return self._folder / out / "work" / f"{name}.safetensors"

    def progress(self, out: str, name: str) -> dict[str, Any]:
        """As a model's checkpoint tells it; step 0 without one."""
        path = self.checkpoint(out, name)
        if not path.is_file():
            return {"step": 0}
        with safe_open(path, framework="pt") as content:
            told: dict[str, Any] = json.loads(content.metadata()["progress"])
        return told

    def weights(self, out: str) -> list[bytes]:
        """Of the pool's models."""
        return [(self._folder / out / name / "model.safetensors").read_bytes() for name in POOL]
