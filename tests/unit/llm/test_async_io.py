"""What reads files for streamed weights is had or refused by name."""

from __future__ import annotations

import pytest
from deepspeed.ops import op_builder

from actors.errors import ConfigError
from actors.llm.offload.async_io import build_folder, load_async_io


class Builder:
    """Stands for DeepSpeed's."""

    is_possible = True

    def is_compatible(self, verbose: bool) -> bool:
        return self.is_possible

    def load(self, verbose: bool) -> None:
        raise RuntimeError("no compiler")


@pytest.fixture(autouse=True)
def _in_place_of_the_real_one(monkeypatch, tmp_path):
    monkeypatch.setenv("TREESERVE_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "somewhere")
    monkeypatch.setenv("PATH", "somewhere")
    monkeypatch.setattr(op_builder, "AsyncIOBuilder", Builder)


def test_a_machine_without_libaio_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(Builder, "is_possible", False)
    with pytest.raises(ConfigError, match=r"llm\.offload: nvme needs libaio .*libaio-dev"):
        load_async_io()


def test_a_build_that_fails_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"llm\.offload: nvme needs .* no compiler"):
        load_async_io()


def test_the_mark_of_a_build_that_was_killed_holds_up_nobody(monkeypatch, tmp_path):
    folder = build_folder() / "async_io"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    monkeypatch.setattr(Builder, "load", lambda self, verbose: None)
    load_async_io()
    assert folder.exists()
    assert not (folder / "lock").exists()
