"""A server of a tiny random model with the embedded model's tokenizer, and eyes on its processes.

`make soak`; the environment makes it longer: SOAK_ROUNDS, SOAK_REQUESTS, SOAK_KILLS, SOAK_S.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from cluster.bench.server import running_server
from tests.processes import descendants

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "deploy" / "configs"
TITLES = (
    "Ingress",
    "RequestManager",
    "LLMRank",
    "DraftModel",
    "ServeController",
    "raylet",
    "gcs_server",
)


@dataclass(frozen=True)
class Server:
    """A running server, from outside."""

    host: str
    port: int
    url: str

    def gauges(self) -> dict[str, float]:
        """What must be nothing when nobody asks for anything."""
        names = ("requests_running", "requests_waiting", "kv_blocks_used")
        return {name: self.metric(f"treeserve_{name}{{") for name in names}

    def metric(self, prefix: str) -> float:
        """The sum of the samples whose line begins so."""
        lines = httpx.get(f"{self.url}/metrics", timeout=60.0).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(prefix))

    def answer(self) -> str:
        """What a request of its own is told."""
        body = {"prompt": "Hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=60.0)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def memory_mb(self) -> dict[str, float]:
        """Memory of its own of each process, by title."""
        found = {}
        for title in TITLES:
            for process in descendants(title):
                with contextlib.suppress(psutil.Error):
                    found[title] = process.memory_full_info().uss / 1e6
        return found

    def pids(self, title: str) -> list[int]:
        """Of the processes with such a title."""
        return [process.pid for process in descendants(title)]


def ready_configuration(name: str) -> dict[str, Any]:
    """What one of the configurations that come with TreeServe says."""
    content: dict[str, Any] = yaml.safe_load((CONFIGURATIONS / name).read_text())
    return content


@contextlib.contextmanager
def serving(content: dict[str, Any], folder: Path) -> Iterator[Server]:
    """A server with such a configuration, which is kept in the folder beside the server's log."""
    config = folder / "server.yaml"
    config.write_text(yaml.safe_dump(content))
    with running_server(config, folder / "server.log") as url:
        host, port = url.removeprefix("http://").split(":")
        yield Server(host, int(port), url)


@pytest.fixture(scope="session")
def tiny_model(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One thin layer, random weights: what is left of a step is our own work."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(smollm2_path / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    content = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "scheduler": {"max_queued_requests": 2000, "kv_memory_bytes": 8_000_000},
    }
    with serving(content, folder) as running:
        yield running
