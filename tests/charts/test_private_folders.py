"""The private folders of requests: permissions, and removal after a killed server."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from supervisor.charts.service import RequestFolders


def test_each_request_has_a_folder_with_mode_0700(tmp_path: Path) -> None:
    folders = RequestFolders(tmp_path / "base")
    folders.open()
    one, other = folders.new(), folders.new()
    assert one != other
    assert os.stat(one).st_mode & 0o777 == os.stat(one.parent).st_mode & 0o777 == 0o700
    (one / "deep").mkdir()
    (one / "deep" / "file").write_text("x")
    folders.remove(one)
    assert not one.exists()
    folders.close()
    assert list((tmp_path / "base").iterdir()) == []


def test_folders_of_dead_servers_are_removed_and_of_running_ones_kept(tmp_path: Path) -> None:
    dead, living = RequestFolders(tmp_path), RequestFolders(tmp_path)
    dead.open()
    left = dead.new()
    os.close(dead._lock)  # as the kernel does when a process ends
    living.open()
    kept = living.new()
    (tmp_path / "pilothouse-not-ours").mkdir()
    third = RequestFolders(tmp_path)
    third.open()
    assert not left.exists()
    assert kept.exists()
    assert (tmp_path / "pilothouse-not-ours").exists(), "a folder without a lock of Pilothouse is kept"
    third.close()
    living.close()


def test_a_folder_that_was_deleted_is_created_again(tmp_path: Path) -> None:
    folders = RequestFolders(tmp_path)
    folders.open()
    folders.remove(folders.new().parent)
    assert folders.new().is_dir()
    folders.close()


def test_opening_twice_creates_one_folder(tmp_path: Path) -> None:
    folders = RequestFolders(tmp_path)
    folders.open()
    folders.open()
    assert len(list(tmp_path.iterdir())) == 1
    folders.close()


def test_a_folder_is_kept_by_a_server_that_starts_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server looks for folders of dead ones immediately before this one locks its own."""
    one, other, lock = RequestFolders(tmp_path), RequestFolders(tmp_path), fcntl.flock

    def lock_later(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        other.open()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_later)
    assert one.new().is_dir()
    one.close()
    other.close()
    assert list(tmp_path.iterdir()) == []
