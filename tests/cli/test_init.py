"""`run.py init`: the written configuration passes `check` and serves; existing files stay."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml
from conftest import ROOT, run_verb

from models.config import loader

STARTING = ROOT / "examples" / "init.yaml"


def init(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_verb("init", *arguments, folder=folder)


def test_the_written_configuration_is_valid_and_names_its_data_directory(tmp_path: Path) -> None:
    done = init(tmp_path, "my server")
    file = tmp_path / "my server" / "pilothouse.yaml"
    command = "pilothouse serve --config 'my server/pilothouse.yaml'"
    assert (done.returncode, done.stdout) == (0, f"wrote my server/pilothouse.yaml\nnext: {command}\n")
    settings = loader.load(file, {})
    assert settings.server.data_dir == tmp_path / "my server" / "data"
    assert [str(name) for name in settings.supervisor.processes] == ["hello"]
    assert [path.name for path in file.parent.iterdir()] == ["pilothouse.yaml"]


def test_without_a_folder_it_writes_into_the_current_one(tmp_path: Path) -> None:
    assert init(tmp_path).stdout == "wrote pilothouse.yaml\nnext: pilothouse serve\n"
    assert loader.load(tmp_path / "pilothouse.yaml", {}).server.port == 8080


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "pilothouse.service").write_text("mine")
    done = init(tmp_path, "--units")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "pilothouse.service: exists already; nothing was written\n"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_example_and_units_are_written(tmp_path: Path) -> None:
    assert init(tmp_path, "--example", "--units").returncode == 0
    for name in ("pilothouse.yaml", "pilothouse.service", "pilothouse.socket"):
        assert (tmp_path / name).read_text() == (ROOT / "examples" / name).read_text()


def test_from_supervisord_writes_the_translation(tmp_path: Path) -> None:
    (tmp_path / "old.conf").write_text("[program:web]\ncommand=cat\n[eventlistener:mail]\ncommand=x\n")
    done = init(tmp_path, "new", "--from-supervisord", "old.conf")
    assert done.returncode == 3
    assert "old.conf:3: [eventlistener:mail]: left out" in done.stderr
    found = yaml.safe_load((tmp_path / "new" / "pilothouse.yaml").read_text())
    assert list(found["supervisor"]["processes"]) == ["web"]


def test_an_unreadable_source_writes_nothing(tmp_path: Path) -> None:
    done = init(tmp_path, "--units", "--from-supervisord", "missing.conf")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "missing.conf: No such file or directory\n"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_name_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("")
    done = init(tmp_path, "new")
    assert (done.returncode, done.stderr) == (2, "new: File exists\n")


def test_every_comment_that_shows_a_property_is_valid_yaml(tmp_path: Path) -> None:
    """Each of them, with `# ` removed."""
    text = re.sub(r"^# (?=( |[a-z]+:))", "", STARTING.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^  pilothouse .*\n", "", text, flags=re.MULTILINE)
    (tmp_path / "all.yaml").write_text(text)
    settings = loader.load(tmp_path / "all.yaml", {})
    assert [str(name) for name in settings.supervisor.processes] == ["hello", "web", "backup"]
    assert (settings.svc.security.mode, settings.tracker.retain_runs) == ("FULL", 500)
