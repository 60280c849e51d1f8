"""`make run` after an earlier failure: a half-made environment, helm that could not be downloaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

FETCH = ".ci/fetch_helm.py"
INSTALL, PINNED = ".ci/fetch_oidc_provider.py", ".ci/oidc_provider"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    (tmp_path / PINNED).mkdir()
    for name in ("Makefile", "setup.cfg", "setup.py", FETCH, INSTALL, f"{PINNED}/package-lock.json"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def program(file: Path, script: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *arguments], cwd=checkout, capture_output=True, text=True, timeout=60)


def test_an_environment_without_pip_is_made_again(checkout: Path) -> None:
    program(checkout / ".venv" / "bin" / "python", "true")
    assert "-m venv --clear .venv" in make(checkout, "-n", "run").stdout
    program(checkout / ".venv" / "bin" / "pip", "true")
    assert "-m venv" not in make(checkout, "-n", "run").stdout


def test_a_python_without_ensurepip_is_one_line_and_leaves_nothing(checkout: Path) -> None:
    python = program(checkout / "python", """[ "$1" = -m ] && mkdir -p .venv/bin; exit 1""")
    done = make(checkout, "run", f"PYTHON={python}")
    assert done.returncode == 2
    assert "(Debian: apt install python3-venv)" in done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(("code", "is_made", "is_ready"), [(0, True, True), (75, True, False), (1, False, False)])
@pytest.mark.parametrize("target", [".tools/ready", ".tools/ready3", ".tools/ready-oidc"])
def test_a_failed_download_is_tried_again(
    checkout: Path, target: str, code: int, is_made: bool, is_ready: bool
) -> None:
    program(checkout / ".venv" / "bin" / "pip", "true")
    program(checkout / ".venv" / "bin" / "python", f"exit {code}")
    assert (make(checkout, target).returncode == 0) is is_made
    assert (checkout / target).exists() is is_ready


def test_a_package_index_that_does_not_answer_is_reported_at_once(checkout: Path) -> None:
    environ = {"PATH": "", "PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_CONFIG_FILE": "/dev/null"}
    done = subprocess.run(
        [sys.executable, FETCH], cwd=checkout, env=environ, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 75
    assert done.stderr.endswith("charts are switched off; the next run tries again\n")


def test_the_identity_provider_of_the_tests_is_tried_again_without_npm_or_its_registry(checkout: Path) -> None:
    shutil.copyfile(ROOT / PINNED / "package.json", checkout / PINNED / "package.json")
    command = [sys.executable, INSTALL]
    done = subprocess.run(command, cwd=checkout, env={"PATH": ""}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 75
    assert "apt install nodejs npm" in done.stderr
    program(checkout / "bin" / "node", "true")
    npm = program(checkout / "bin" / "npm", "mkdir -p node_modules; exit 1")
    environ = {"PATH": f"{npm.parent}:/usr/bin:/bin"}
    done = subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 75
    assert [path.name for path in (checkout / ".tools").iterdir()] == [], "nothing half made is left"


def test_the_lock_file_has_no_address_of_a_registry() -> None:
    assert "resolved" not in (ROOT / PINNED / "package-lock.json").read_text()
