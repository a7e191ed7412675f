"""Other draft models for a server that runs: by a command, by SIGHUP, and for the next manager."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from actors.errors import ModelError, PeerUnavailable
from actors.ssm.config import SSMConfig
from cluster import cli, ray_api
from cluster.config import Config, config_of
from deploy import running, swapped_pool
from deploy.serve_command import Hangups, _swap_draft_models

TEXT = "{ssms: [{path: new}], speculation: {drafters: [ssm]}}"


def config(path: str, **more: object) -> Config:
    return config_of({"ssms": [{"path": path}], "speculation": {"drafters": ["ssm"]}, **more})


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was called; draft models that are called `bad` are refused."""
    calls: list[object] = []

    def swap(ssms: Sequence[SSMConfig]) -> None:
        calls.append([ssm.path for ssm in ssms])
        if ssms[0].path == "bad":
            raise ModelError("ssms.0 (bad): its weights are not finite")

    monkeypatch.setattr(ray_api, "join_cluster", lambda: calls.append("joined"))
    monkeypatch.setattr(running, "swap_draft_models", swap)
    return calls


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "new.yaml"
    path.write_text(TEXT)
    return path


def test_the_command(done: list[object], file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["swap", str(file)]) == 0
    assert done == ["joined", ["new"]]
    assert capsys.readouterr().out == "Draft models: new\n"


def test_one_that_is_refused_is_told_of(
    done: list[object], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(TEXT.replace("new", "bad"))
    assert cli.main(["swap", str(file)]) == 1
    assert capsys.readouterr() == ("", "treeserve: ssms.0 (bad): its weights are not finite\n")


def test_a_configuration_with_mistakes_reaches_nobody(done: list[object], file: Path) -> None:
    file.write_text("{ssms: [{path: new}]}")
    assert cli.main(["swap", str(file)]) == 2
    assert done == []


@pytest.fixture
def hangups() -> Iterator[Hangups]:
    before = signal.getsignal(signal.SIGHUP)
    yield Hangups()
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_is_taken_once(hangups: Hangups) -> None:
    assert not hangups.take()
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
    assert hangups.take()
    assert not hangups.take()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT, "Draft models: new"),
        (TEXT.replace("new", "bad"), "treeserve: ssms.0 (bad): its weights are not finite"),
        ("{no: ", "not valid YAML"),
    ],
)
def test_a_server_that_reads_its_file_again_goes_on(
    text: str, said: str, done: list[object], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    _swap_draft_models(file)
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert ("have stayed as they were" in err) == (text != TEXT)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What the cluster keeps."""
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(ray_api, "remember", kept.__setitem__)
    monkeypatch.setattr(ray_api, "recall", kept.get)
    return kept


def test_the_next_manager_has_the_draft_models_of_the_one_before(store: dict[str, bytes]) -> None:
    deployed = config("old")
    assert swapped_pool.with_kept(deployed) is deployed
    swapped_pool.keep(deployed, config("new").ssms)
    assert swapped_pool.with_kept(deployed) == config("new")
    swapped_pool.keep(deployed, config("newest").ssms)
    assert swapped_pool.with_kept(deployed) == config("newest")


def test_a_configuration_that_is_deployed_anew_is_taken_at_its_word(
    store: dict[str, bytes],
) -> None:
    swapped_pool.keep(config("old"), config("new").ssms)
    for other in (config("other"), config("old", api={"port": 8001})):
        assert swapped_pool.with_kept(other) is other


def test_a_cluster_that_cannot_be_reached_is_told_of(
    done: list[object], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise PeerUnavailable("no Ray cluster to join")

    monkeypatch.setattr(ray_api, "join_cluster", refuse)
    assert cli.main(["swap", str(file)]) == 1
    assert done == []
