"""Folders for streamed weights belong to one process, and do not outlive it."""

from __future__ import annotations

import fcntl

import pytest

from actors.errors import ConfigError
from actors.llm.offload import swap_folder
from actors.llm.offload.swap_folder import LOCK, PREFIX, claim_swap_folder


def test_folders_in_use_are_left_alone_and_abandoned_ones_removed(tmp_path):
    base = tmp_path / "deep" / "down"
    own = claim_swap_folder(base, 1)
    abandoned, never_locked, used = (base / f"{PREFIX}{name}" for name in "abc")
    (base / f"{PREFIX}file").touch()
    for folder in (abandoned, never_locked, used):
        folder.mkdir()
        (folder / "weights").write_bytes(b"1")
    (abandoned / LOCK).touch()
    (base / "not-ours").mkdir()
    with (used / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        another = claim_swap_folder(base, 1)
    left = {own, another, used, never_locked, base / f"{PREFIX}file"}
    assert left == set(base.glob(f"{PREFIX}*")), "what has no lock is not ours"
    assert own != another
    assert (base / "not-ours").exists()


def test_too_little_room_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"llm\.offload_dir: .* bytes are needed"):
        claim_swap_folder(tmp_path, 1 << 60)
    assert not list(tmp_path.glob(f"{PREFIX}*"))


def test_what_another_rank_is_going_to_write_is_taken(tmp_path, monkeypatch):
    """Stages of one host start together: each finds the same room, and together they overrun it."""
    room = 1 << 20
    monkeypatch.setattr(swap_folder, "_free_bytes", lambda base: room)
    first = claim_swap_folder(tmp_path, 600_000)
    with pytest.raises(ConfigError, match=rf"has {room - 600_000} left"):
        claim_swap_folder(tmp_path, 600_000)
    (first / "weights").write_bytes(bytes(400_000))
    room -= 400_000
    with pytest.raises(ConfigError, match="bytes are needed"):
        claim_swap_folder(tmp_path, 600_000)
    claim_swap_folder(tmp_path, 400_000)


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"llm\.offload_dir: "):
        claim_swap_folder(tmp_path / "file" / "folder", 1)
