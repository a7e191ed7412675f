"""What `treeserve serve` says when its cluster is lost, and when."""

from __future__ import annotations

import argparse
import contextlib
import socket
from pathlib import Path

import pytest

from cluster.config import Config
from deploy import serve_command


def test_it_is_said_before_anything_is_taken_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []

    @contextlib.contextmanager
    def serving(*_):
        try:
            yield
        finally:
            said.append(capsys.readouterr().err)

    config = Config.model_validate({"api": {"port": 1}})
    monkeypatch.setattr(serve_command, "_serving", serving)
    monkeypatch.setattr(serve_command, "load_with_files", lambda _: config)
    monkeypatch.setattr(serve_command, "check_files", lambda _: Path("model"))
    monkeypatch.setattr(serve_command, "bound_socket", lambda *_: socket.socket())
    monkeypatch.setattr(serve_command, "_first_token", lambda *_: None)
    monkeypatch.setattr(serve_command, "has_chat_template", lambda _: False)
    monkeypatch.setattr(serve_command.daemons, "are_alive", lambda: False)
    arguments = argparse.Namespace(config=Path("c"), host=None, port=None)
    with pytest.raises(SystemExit) as ended:
        serve_command.run(arguments)
    assert ended.value.code == 1
    assert said == ["treeserve: Ray's daemons have died; nothing can be served any more\n"]
    assert capsys.readouterr().err == ""
