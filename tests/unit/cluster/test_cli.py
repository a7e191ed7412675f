"""The command line: exit statuses, and what a user is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from actors.errors import InputError, ModelError, TreeServeError
from cluster import cli

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = ROOT / "deploy" / "configs"
READY = CONFIGS / "smollm2.yaml"


@pytest.fixture
def bad_config(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text("api: {port: 0}\nmodel: {dtype: int4}\n")
    return path


def test_validate_shows_the_placement(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(READY)]) == 0
    out = capsys.readouterr().out
    assert "is valid" in out
    assert "LLM stage 0, 1 rank" in out


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_ready_configuration_is_valid(path: Path) -> None:
    assert cli.main(["validate", str(path)]) == 0


def test_several_nodes_share_the_model_by_stages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(CONFIGS / "several-nodes.yaml")]) == 0
    out = capsys.readouterr().out
    assert "strategy SPREAD" in out
    assert out.count("4 ranks (CPU 4, GPU 4)") == 2


def test_validate_tells_all_mistakes(bad_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(bad_config)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["model.dtype", "api.port"]


@pytest.mark.parametrize("command", ["validate", "serve"])
def test_every_file_that_is_no_good_is_told_of(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("""
        model: {path: nosuch-model}
        ssms: [{path: /nowhere/a}, {path: 'embedded:nothing'}]
        speculation: {drafters: [ssm]}
        api: {api_keys_file: /nowhere/keys}
    """)
    assert cli.main([command, str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    fields = ["model.path", "ssms.0.path", "ssms.1.path", "api.api_keys_file"]
    assert [line.split(":")[1].strip() for line in lines] == fields


@pytest.mark.parametrize("command", ["validate", "serve"])
def test_mistakes_of_the_configuration_and_of_its_files_are_told_at_once(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("""
        model: {path: nosuch-model}
        llm: {tensor_paralel: 2}
        ssms: [{path: /nowhere/a}]
        speculation: {max_depth: 0, drafters: [ssm]}
        api: {api_keys_file: /nowhere/keys}
        grpc: {tls: {ca: /nowhere/ca, cert: /nowhere/cert}}
    """)
    assert cli.main([command, str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    fields = ["llm.tensor_paralel", "speculation.max_depth", "grpc.tls.key"]
    fields += ["model.path", "ssms.0.path", "api.api_keys_file"]
    assert [line.split(":")[1].strip() for line in lines] == fields


@pytest.mark.parametrize("command", ["validate", "serve"])
def test_the_model_that_is_here_is_looked_at(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8}'
    )
    (tmp_path / "model.safetensors").touch()
    path = tmp_path / "config.yaml"
    path.write_text(
        f"{{model: {{path: {tmp_path}}}, scheduler: {{kv_memory_bytes: 10}}, "
        "llm: {quantization: int8}}"
    )
    assert cli.main([command, str(path)]) == 2
    tokenizer, memory, weights = capsys.readouterr().err.splitlines()
    assert "model.path: " in tokenizer and "tokenizer" in tokenizer
    assert "scheduler.kv_memory_bytes: 10 bytes do not hold" in memory
    assert "llm.quantization: its config.json cannot be used" in weights


def test_validate_fetches_no_model(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: {path: owner/name}")
    assert cli.main(["validate", str(path)]) == 0, "it is fetched when it is served"


def write_mixture(path: Path) -> None:
    """The configuration of a model of text and images, whose text layers have experts."""
    sizes = {
        "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8, "num_local_experts": 4,
    }  # fmt: skip
    path.write_text(json.dumps({"text_config": sizes}))


@pytest.mark.parametrize(("tensor_parallel", "told"), [(1, False), (2, True)])
def test_validate_tells_that_experts_are_not_split(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tensor_parallel: int,
    told: bool,
) -> None:
    monkeypatch.setattr("deploy.named_files.load_vocabulary", lambda folder: None)
    write_mixture(tmp_path / "config.json")
    (tmp_path / "model.safetensors").touch()
    path = tmp_path / "config.yaml"
    path.write_text(f"{{model: {{path: {tmp_path}}}, llm: {{tensor_parallel: {tensor_parallel}}}}}")
    assert cli.main(["validate", str(path)]) == 0
    shown = capsys.readouterr().out
    assert ("splits attention and layers without experts alone" in shown) == told
    assert ("all of a layer's experts" in shown) == told


def test_an_empty_configuration_is_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.yaml"
    path.touch()
    assert cli.main(["validate", str(path)]) == 0
    assert "serves smollm2-135m-instruct" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["serve"], ["generate", "--prompt", "x"]])
def test_nothing_starts_with_a_bad_configuration(
    command: list[str], bad_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command
    assert cli.main([name, str(bad_config), *options]) == 2
    assert "api.port" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["dance"], ["serve"], ["generate", "c"], ["serve", "c", "--port", "x"]]
)
def test_wrong_use(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelError("no such model"), 1),
        (InputError("max_tokens must not be negative"), 2),
        (KeyboardInterrupt(), 1),
    ],
)
def test_errors_become_a_status_and_a_line(
    error: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: object) -> int:
        raise error

    module = SimpleNamespace(run=run)
    monkeypatch.setattr(cli.importlib, "import_module", lambda _: module)
    assert cli.main(["validate", "c"]) == status
    told = capsys.readouterr().err
    assert told.startswith("treeserve: ")
    assert len(told.splitlines()) == 1
    if isinstance(error, TreeServeError):
        assert str(error) in told


def test_help_says_what_becomes_of_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["generate", "--help"])
    assert "chat template" in capsys.readouterr().out


def test_validate_needs_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from cluster.cli import main; "
        f"status = main(['validate', {str(READY)!r}]); "
        "heavy = {'torch', 'ray', 'transformers', 'grpc'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
