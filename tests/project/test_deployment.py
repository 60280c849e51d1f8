"""The deployment examples: systemd accepts the units, and the files that the Containerfile copies exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from requirements import require

from packing.dist import TAKEN

UNITS = ("pilothouse.service", "pilothouse.socket")
MAX_EXPOSURE = 25
"""What `systemd-analyze security` may give it at most, in tenths of 10 points."""


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    """The units with an existing program, because systemd checks that it exists."""
    require("systemd-analyze")
    for name in UNITS:
        text = (ROOT / "examples" / name).read_text()
        (tmp_path / name).write_text(text.replace("/usr/local/bin/pilothouse", sys.executable))
    return [tmp_path / name for name in UNITS]


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_systemd_verifies_the_units_without_warnings(units: list[Path]) -> None:
    done = analyze("verify", *units)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_reports_unknown_settings(units: list[Path]) -> None:
    units[0].write_text(units[0].read_text().replace("KillMode=process", "KillMode=nobody"))
    assert "kill mode" in analyze("verify", *units).stderr


def test_the_unit_is_hardened(units: list[Path]) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", units[0])
    assert done.returncode == 0, done.stdout


def test_the_unit_uses_existing_arguments() -> None:
    text = (ROOT / "examples" / "pilothouse.service").read_text()
    found = re.search(r"^ExecStart=\S+ (.+)$", text, re.MULTILINE)
    assert found is not None
    command = [sys.executable, str(ROOT / "run.py"), *shlex.split(found[1]), "--version"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_restarts_of_the_unit_stay_below_the_start_limit() -> None:
    text = (ROOT / "examples" / "pilothouse.service").read_text()
    found = dict(re.findall(r"^(RestartSec|StartLimitIntervalSec|StartLimitBurst)=(\d+)$", text, re.MULTILINE))
    assert int(found["StartLimitBurst"]) > int(found["StartLimitIntervalSec"]) / int(found["RestartSec"])


def test_the_unit_of_the_quickstart_starts_the_installed_program() -> None:
    """`sed` replaces the path of the program, and pip installs the program at that path."""
    quickstart = (ROOT / "docs" / "quickstart-operator.md").read_text()
    found = re.search(r"^sed '(.+)' (?:\.\./)?examples/pilothouse\.service >", quickstart, re.MULTILINE)
    assert found is not None
    unit = subprocess.run(
        ["sed", found[1], ROOT / "examples" / "pilothouse.service"], capture_output=True, text=True, check=True
    ).stdout
    (program,) = re.findall(r"^ExecStart=(\S+) --config ", unit, re.MULTILINE)
    assert f"{Path(program).parent}/pip install" in quickstart
    assert f"{Path(program).name} = pilothouse:main" in (ROOT / "setup.cfg").read_text()


def test_the_containerfile_copies_all_sources_of_the_executable() -> None:
    text = (ROOT / "examples" / "Containerfile").read_text()
    copied = {
        source for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for source in line.split()[:-1]
    }
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert {*TAKEN, ".ci/fetch_helm.py"} <= copied
